# cmake -DOUTPUT=... -DFLAGS=... -DHEADERS=a;b -P WriteBuildId.cmake: a source file with the id that a program and its
# modules must share, made of every header whose classes cross between them.
set(contents "${FLAGS}")
foreach(header IN LISTS HEADERS)
  file(SHA256 ${header} digest)
  string(APPEND contents ${digest})
endforeach()
string(SHA256 digest "${contents}")
string(SUBSTRING ${digest} 0 16 digest)
file(WRITE ${OUTPUT} "#include \"device/backend.h\"

namespace bascule {
std::string_view BackendBuildId() { return \"${LABEL} ${digest}\"; }
}  // namespace bascule
")
