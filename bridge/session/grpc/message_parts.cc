#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <utility>

#include "bridge/session/grpc/message_parts_internal.h"

namespace bascule {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int kMaxDepth = 100;  // as protobuf has it
constexpr std::size_t kBytesOfNumber = 8;

class PartCounter {
 public:
  explicit PartCounter(std::size_t most) : left_(most) {}

  // False once there are too many, or at bytes that are no message of `type`. `input` ends where the message does.
  bool Count(CodedInputStream& input, const Descriptor& type, int depth) {
    if (depth > kMaxDepth) return false;
    while (const std::uint32_t tag = input.ReadTag()) {
      const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
      switch (WireFormatLite::GetTagWireType(tag)) {
        case WireFormatLite::WIRETYPE_LENGTH_DELIMITED:
          if (!CountDelimited(input, field, depth)) return false;
          break;
        case WireFormatLite::WIRETYPE_START_GROUP:
        case WireFormatLite::WIRETYPE_END_GROUP:
          return false;  // no message of ours has one
        default:
          // What protobuf does not know it keeps aside, which costs as much as a part.
          if (!IsNumber(field) && !Take(1)) return false;
          if (!WireFormatLite::SkipField(&input, tag)) return false;
      }
    }
    return input.ConsumedEntireMessage();
  }

 private:
  static bool IsNumber(const FieldDescriptor* field) {
    return field != nullptr && field->cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
           field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
  }

  bool CountDelimited(CodedInputStream& input, const FieldDescriptor* field, int depth) {
    std::uint32_t length = 0;
    if (!input.ReadVarint32(&length) || std::cmp_greater(length, input.BytesUntilLimit())) return false;
    const auto bytes = static_cast<int>(length);
    if (!Take(IsNumber(field) ? 1 + length / kBytesOfNumber : 1)) return false;
    if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return input.Skip(bytes);
    const CodedInputStream::Limit outer = input.PushLimit(bytes);
    if (!Count(input, *field->message_type(), depth + 1)) return false;
    input.PopLimit(outer);
    return true;
  }

  bool Take(std::size_t parts) {
    if (parts > left_) return false;
    left_ -= parts;
    return true;
  }

  std::size_t left_;
};

}  // namespace

bool HasFewParts(const Descriptor& type, std::string_view bytes, std::size_t most) {
  const auto size = static_cast<int>(bytes.size());
  CodedInputStream input(reinterpret_cast<const std::uint8_t*>(bytes.data()), size);
  input.PushLimit(size);
  return PartCounter(most).Count(input, type, /*depth=*/0);
}

}  // namespace bascule
