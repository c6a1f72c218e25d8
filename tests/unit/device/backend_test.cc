#include "device/backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace bascule {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(LoadBackendTest, AModuleThatIsNowhereIsUnavailableAndEveryPlaceIsNamed) {
  const Status status = LoadBackend({"/nowhere/libbascule_cuda.so", "libbascule_not_installed.so"}).status();

  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(status.reason(), "no_cuda_backend");
  EXPECT_THAT(status.message(), AllOf(HasSubstr("/nowhere/libbascule_cuda.so"),
                                      HasSubstr("libbascule_not_installed.so"), HasSubstr("BASCULE_CUDA_MODULE")));
}

// C-044.
TEST(LoadBackendTest, AModuleOfAnotherBuildIsRefusedBeforeItIsAskedForAnything) {
  const Status status = LoadBackend({OTHER_BUILD_MODULE}).status();

  EXPECT_EQ(status.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.reason(), "backend_mismatch");
  EXPECT_THAT(status.message(), AllOf(HasSubstr("0.0.0 another build"), HasSubstr(std::string(BackendBuildId()))));
}

TEST(LoadBackendTest, ALibraryThatIsNoModuleIsRefusedByName) {
  const Status status = LoadBackend({NO_MODULE}).status();

  EXPECT_EQ(status.reason(), "backend_mismatch");
  EXPECT_THAT(status.message(), HasSubstr("bascule_cuda_backend"));
}

TEST(DeviceUuidTest, IsSpelledAsNvidiaSmiSpellsIt) {
  const DeviceUuid uuid{
      {0x89, 0x32, 0xf9, 0x37, 0xd7, 0x2c, 0x41, 0x06, 0xc1, 0x2f, 0x20, 0xbd, 0x9f, 0xae, 0xd9, 0xf6}};

  EXPECT_EQ(uuid.ToString(), "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6");
  EXPECT_EQ(*ParseDeviceUuid(uuid.ToString()), uuid);
}

TEST(DeviceUuidTest, AnyOtherSpellingIsRefused) {
  for (const std::string_view text :
       {"", "GPU", "8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f937d72c4106c12f20bd9faed9f6",
        "GPU-8932F937-d72c-4106-c12f-20bd9faed9f6", "GPU-8932f937-d72c-4106-c12f-20bd9faed9"}) {
    EXPECT_EQ(ParseDeviceUuid(text).status().reason(), "bad_device_uuid") << text;
  }
}

}  // namespace
}  // namespace bascule
