#include "tools/start_options.h"

#include "tools/dtype_option.h"
#include "tools/options.h"
#include "tools/read_option.h"

namespace bascule {

void AddServing(CLI::App& app, StartOptions& start, ReceivingOptions& process) {
  process.listen = "127.0.0.1:0";
  app.add_option("checkpoint", start.checkpoint,
                 "a checkpoint (config.json and *.safetensors) or an artifact: the model, and its first version")
      ->required();
  AddTensorParallel(app, start.tensor_parallel);
  AddDType(app, process.dtype, "of the weights in memory");
  AddAddress(app, "--listen", process.listen, "where to serve; port 0 takes a free one, which is printed")
      ->capture_default_str();
}

void AddFirstVersion(CLI::App& app, StartOptions& start, ReceivingOptions& process, std::string_view what) {
  AddNumber(app, "--version", start.version, "number of the checkpoint's version");
  app.add_option("--run", start.run, "run of the checkpoint's version")->capture_default_str();
  app.add_option("--allow-root", process.allow_roots,
                 "directory beneath which peers may have versions loaded (publish --from-disk); may be repeated")
      ->type_name("DIR");
  AddAddress(app, "--from-peer", start.membership.from_peer,
             "take the first version from this running engine, which sends what it has live, instead of the files");
  AddAddress(app, "--join", start.membership.join,
             "be in the fleet of this publisher (publish --serve): it brings what its fleet has committed");
  AddAddress(app, "--advertise", start.membership.advertise,
             fmt::format("with --join and --from-peer: where others reach this {}; default: where it listens", what));
  AddDuration(app, "--load-deadline", start.load_deadline, "by when the first version is live");
  AddReadOptions(app, start.read);
  AddBothSecurity(app, start.security);
}

Status Apply(const StartOptions& start, const LogicalCheckpoint& checkpoint, ReceivingOptions& process) {
  ASSIGN_OR_RETURN(process.security, ServerSecurityOf(start.security));
  ASSIGN_OR_RETURN(process.peers, ClientSecurityOf(start.security));
  process.parallel = ParallelWanted(checkpoint, start.tensor_parallel);
  process.read = start.read;
  return OkStatus();
}

}  // namespace bascule
