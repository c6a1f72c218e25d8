// rpc_walk DESCRIPTOR_SET ADDRESS [ROUNDS]: calls every RPC of every service that a server shows, and prints what came
// of it, one JSON object a line: {"rpc":"/service/method","role":"read","code":"OK","reason":""}.
//
// BASCULE_TOKEN is sent with the calls, BASCULE_WALK_TOKEN with the question which services there are. Each call sends
// one empty message, or in each of ROUNDS one that makes no sense, and is cancelled as soon as the server has let it
// in.
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>

#include "base/grpc/grpc_channel.h"
#include "base/grpc/grpc_status.h"

namespace bascule {
namespace {

constexpr int kRoleOption = 50100;  // bascule/v1/access.proto
constexpr const char* kReflection = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr const char* kRoles[] = {"", "read", "generate", "operate", "publish"};

grpc::ByteBuffer Message(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

// A call of any RPC: one message goes out, and the first answer or the end comes back.
class AnyCall {
 public:
  AnyCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& rpc) : stub_(channel) {
    context_.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    stream_ = stub_.PrepareCall(&context_, rpc, &queue_);
    stream_->StartCall(this);
    Wait();
  }

  // Sends one message. OK as soon as the server answers, with what it says; else how the call ended.
  grpc::Status Exchange(const std::string& message, std::string* answer) {
    stream_->WriteLast(Message(message), grpc::WriteOptions(), this);
    Wait();
    grpc::ByteBuffer first;
    stream_->Read(&first, this);
    const bool answered = Wait();
    if (answered) {
      grpc::Slice whole;
      CHECK(first.DumpToSingleSlice(&whole).ok());
      answer->assign(whole.begin(), whole.end());
      context_.TryCancel();
    }
    grpc::Status status;
    stream_->Finish(&status, this);
    Wait();
    return answered ? grpc::Status::OK : status;
  }

 private:
  bool Wait() {
    void* tag = nullptr;
    bool ok = false;
    CHECK(queue_.Next(&tag, &ok));
    return ok;
  }

  grpc::GenericStub stub_;
  grpc::CompletionQueue queue_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> stream_;
};

std::shared_ptr<grpc::Channel> ChannelWith(const std::string& address, const char* variable) {
  const char* const token = std::getenv(variable);
  return MakeGrpcChannel(address, {.token = token == nullptr ? "" : token}).value();
}

// The text of each field `number` of a serialised message.
std::vector<std::string> Fields(const std::string& message, int number) {
  google::protobuf::UnknownFieldSet set;
  CHECK(set.ParseFromString(message));
  std::vector<std::string> found;
  for (int i = 0; i < set.field_count(); ++i) {
    const auto& field = set.field(i);
    if (field.number() == number && field.type() == google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      found.push_back(field.length_delimited());
    }
  }
  return found;
}

// What reflection lists: the request is list_services (7), the answer list_services_response (6) with services (1)
// that have names (1).
std::vector<std::string> ServicesOf(const std::string& address) {
  std::string answer;
  const grpc::Status status =
      AnyCall(ChannelWith(address, "BASCULE_WALK_TOKEN"), kReflection).Exchange(std::string("\x3a\x00", 2), &answer);
  if (!status.ok()) std::fprintf(stderr, "reflection: %s\n", status.error_message().c_str());
  CHECK(status.ok());
  std::vector<std::string> names;
  for (const std::string& list : Fields(answer, 6)) {
    for (const std::string& service : Fields(list, 1)) names.push_back(Fields(service, 1).at(0));
  }
  return names;
}

struct Rpc {
  std::string path;
  std::string role;
};

std::string RoleOf(const google::protobuf::MethodDescriptorProto& method) {
  google::protobuf::UnknownFieldSet options;
  CHECK(options.ParseFromString(method.options().SerializeAsString()));
  for (int i = 0; i < options.field_count(); ++i) {
    if (options.field(i).number() == kRoleOption) return kRoles[options.field(i).varint()];
  }
  return "";
}

// What protoc has made of all .proto files.
google::protobuf::FileDescriptorSet ReadProtos(const std::string& path) {
  google::protobuf::FileDescriptorSet protos;
  std::ifstream file(path, std::ios::binary);
  CHECK(protos.ParseFromIstream(&file));
  return protos;
}

using Services = std::map<std::string, std::vector<Rpc>>;

// Fields of any number with values that few of them want, one within another, and every fourth message cut short.
std::string Nonsense(std::mt19937_64& random, int depth = 0) {
  constexpr std::uint64_t kValues[] = {0, 1, 77, (1ULL << 31) - 1, 1ULL << 31, 1ULL << 63, ~0ULL};
  google::protobuf::UnknownFieldSet fields;
  for (std::uint64_t left = random() % 6; left > 0; --left) {
    const int number = 1 + static_cast<int>(random() % 16);
    const std::uint64_t kind = random() % 4;
    if (kind == 0) fields.AddFixed64(number, random());
    if (kind == 1) fields.AddLengthDelimited(number, depth < 3 ? Nonsense(random, depth + 1) : "\xff\xfe no text");
    if (kind > 1) fields.AddVarint(number, kValues[random() % std::size(kValues)]);
  }
  std::string bytes;
  CHECK(fields.SerializeToString(&bytes));
  if (depth == 0 && random() % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
  return bytes;
}

Services ServicesIn(const google::protobuf::FileDescriptorSet& protos) {
  Services services;
  for (const auto& file : protos.file()) {
    for (const auto& service : file.service()) {
      const std::string name = file.package() + "." + service.name();
      for (const auto& method : service.method()) {
        services[name].push_back({"/" + name + "/" + method.name(), RoleOf(method)});
      }
    }
  }
  services["grpc.health.v1.Health"] = {{"/grpc.health.v1.Health/Check", "read"},
                                       {"/grpc.health.v1.Health/Watch", "read"}};
  services["grpc.reflection.v1alpha.ServerReflection"] = {{kReflection, "read"}};
  return services;
}

void CallAndPrint(const std::shared_ptr<grpc::Channel>& channel, const Rpc& rpc, const std::string& message) {
  std::string answer;
  const Status status = FromGrpc(AnyCall(channel, rpc.path).Exchange(message, &answer));
  std::printf("{\"rpc\":\"%s\",\"role\":\"%s\",\"code\":\"%s\",\"reason\":\"%s\"}\n", rpc.path.c_str(),
              rpc.role.c_str(), std::string(StatusCodeName(status.code())).c_str(), status.reason().c_str());
}

int Walk(const std::string& protos, const std::string& address, int rounds) {
  const Services services = ServicesIn(ReadProtos(protos));
  const auto channel = ChannelWith(address, "BASCULE_TOKEN");
  std::mt19937_64 random(47);
  for (const std::string& service : ServicesOf(address)) {
    const auto known = services.find(service);
    if (known == services.end()) return std::fprintf(stderr, "nothing is known of %s\n", service.c_str()), 1;
    for (const Rpc& rpc : known->second) {
      if (rounds == 0) CallAndPrint(channel, rpc, "");
      for (int round = 0; round < rounds; ++round) CallAndPrint(channel, rpc, Nonsense(random));
    }
  }
  return 0;
}

}  // namespace
}  // namespace bascule

int main(int argc, char** argv) {
  if (argc < 3 || argc > 4) return std::fprintf(stderr, "usage: rpc_walk DESCRIPTOR_SET ADDRESS [ROUNDS]\n"), 2;
  return bascule::Walk(argv[1], argv[2], argc == 4 ? std::atoi(argv[3]) : 0);
}
