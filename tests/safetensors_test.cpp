// Safetensors files in and out, and the malformed ones.
#include <sys/resource.h>
#include <unistd.h>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/compare.h"
#include "support/contexts.h"
#include "support/errors.h"

namespace zerone::test {
namespace {

namespace fs = std::filesystem;

template <class T>
std::string raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string little_endian(std::uint64_t value) {
  return raw<std::uint64_t>({value});
}

/// A file with the header as given.
std::string file_of(const std::string& header, const std::string& data = {}) {
  return little_endian(header.size()) + header + data;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

/// The bits of the values: NaN and -0.0 count.
std::string bits_of(const Tensor& x) {
  const Tensor host = x.to(Context(Device::cpu())).contiguous();
  return {static_cast<const char*>(host.data()), host.bytes()};
}

constexpr DType all_dtypes[] = {DType::f64, DType::f32, DType::bf16,
                                DType::f16, DType::i64, DType::u8};

/// A folder of its own, removed at the end; checks that no test leaves a file open.
class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path fast = "/dev/shm";  // thousands of small files are written
    folder_ = (access(fast.c_str(), W_OK) == 0 ? fast : fs::temp_directory_path()) /
              fmt::format("zerone_safetensors_{}_{}", getpid(),
                          ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    (void)contexts();  // a GPU's driver keeps files open
    open_ = open_files();
  }
  void TearDown() override {
    EXPECT_EQ(open_files(), open_) << "a file was left open";
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name = "x.safetensors") const { return folder_ / name; }
  void write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary | std::ios::trunc) << bytes;
  }
  /// A malformed file: a FileError that names it, says `parts`, and takes no memory for tensors.
  void expect_error(const std::string& bytes, std::initializer_list<std::string> parts = {}) const {
    write(bytes);
    const Context context;
    const std::string text =
        message_of<FileError>([&] { (void)load_safetensors(context, path()); });
    expect_contains(text, {path()});
    expect_contains(text, parts);
    EXPECT_LT(text.size(), 1000u);
    EXPECT_EQ(context.memory().peak_live, 0u);
  }
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const auto& entry : fs::directory_iterator(folder_))
      all.push_back(entry.path().filename());
    return all;
  }

 private:
  fs::path folder_;
  std::size_t open_ = 0;
};

// --- good files ---------------------------------------------------------------------------------

TEST_F(Safetensors, RoundTripsEveryTypeAndShape) {
  Random random(0);
  on_every_device([&](const Context& context) {
    std::vector<NamedTensor> tensors;
    for (const DType dtype : all_dtypes)
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{5}, Shape{0}, Shape{2, 0, 3},
                                 Shape{2, 3, 4}, Shape{1, 2, 1, 2, 1, 2, 1, 2}})
        tensors.push_back(
            {to_string(dtype) + " " + to_string(shape),
             make_tensor(context, shape,
                         random_values(random, shape.numel(), DType::f64, dtype == DType::i64))
                 .to(dtype)});
    save_safetensors(tensors, path(), {{"format", "pt"}, {"", "a \"text\"\n\u00e4\u20ac"}});
    SafetensorsFile file(path());
    EXPECT_EQ(file.entries().size(), tensors.size());
    EXPECT_EQ(file.metadata(), (FileMetadata{{"format", "pt"}, {"", "a \"text\"\n\u00e4\u20ac"}}));
    for (const auto& [name, x] : tensors) {
      SCOPED_TRACE(name);
      const Tensor y = file.load(context, name);
      EXPECT_EQ(y.dtype(), x.dtype());
      EXPECT_EQ(y.shape(), x.shape());
      EXPECT_EQ(y.context(), context);
      EXPECT_EQ(bits_of(y), bits_of(x));
      EXPECT_EQ(file.entries().at(name).begin % size_of(x.dtype()), 0u) << "misaligned";
    }
  });
}

TEST_F(Safetensors, WritesTheReferenceWritersBytes) {
  const Context context;
  save_safetensors({}, path());
  EXPECT_EQ(bytes_of(path()), file_of("{}      "));
  EXPECT_TRUE(load_safetensors(context, path()).empty());

  // By falling alignment, then by name, whatever the order of the list.
  const std::vector<NamedTensor> tensors{{"a", Tensor::from<std::uint8_t>(context, {3}, {1, 2, 3})},
                                         {"b", Tensor::from<float>(context, {1}, {1.5f})},
                                         {"B\"", Tensor::from<float>(context, {}, {-2.0f})},
                                         {"c", Tensor::from<f16>(context, {1}, {f16(1.0f)})},
                                         {"d", Tensor::from<bf16>(context, {1, 1}, {bf16(1.0f)})},
                                         {"e", Tensor::from<double>(context, {1}, {0.5})},
                                         {"f", Tensor::from<std::int64_t>(context, {1}, {-1})}};
  save_safetensors(tensors, path(), {{"k", "v"}, {"a", ""}});
  std::string header = R"({"__metadata__":{"a":"","k":"v"},)"
                       R"("f":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},)"
                       R"("e":{"dtype":"F64","shape":[1],"data_offsets":[8,16]},)"
                       R"("B\"":{"dtype":"F32","shape":[],"data_offsets":[16,20]},)"
                       R"("b":{"dtype":"F32","shape":[1],"data_offsets":[20,24]},)"
                       R"("d":{"dtype":"BF16","shape":[1,1],"data_offsets":[24,26]},)"
                       R"("c":{"dtype":"F16","shape":[1],"data_offsets":[26,28]},)"
                       R"("a":{"dtype":"U8","shape":[3],"data_offsets":[28,31]}})";
  while (header.size() % 8 != 0) header += ' ';
  EXPECT_EQ(
      bytes_of(path()),
      file_of(header, raw<std::int64_t>({-1}) + raw<double>({0.5}) + raw<float>({-2, 1.5}) +
                          raw<std::uint16_t>({0x3f80, 0x3c00}) + raw<std::uint8_t>({1, 2, 3})));
}

TEST_F(Safetensors, SpecialValuesKeepTheirBits) {
  on_every_device([&](const Context& context) {
    const double inf = std::numeric_limits<double>::infinity();
    const Tensor x = Tensor::from<double>(context, {5}, {inf, -inf, -0.0, std::nan(""), 5e-324});
    std::vector<NamedTensor> tensors;
    for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16})
      tensors.push_back({to_string(dtype), x.to(dtype)});
    save_safetensors(tensors, path());
    for (const auto& [name, y] : load_safetensors(context, path()))
      for (const NamedTensor& saved : tensors) {
        if (saved.name == name) {
          EXPECT_EQ(bits_of(y), bits_of(saved.tensor)) << name;
        }
      }
  });
}

TEST_F(Safetensors, ViewsAreSavedRowMajor) {
  on_every_device([&](const Context& context) {
    const std::vector<NamedTensor> tensors{
        {"slice", Tensor::uniform(context, {4, 5, 6}).permute({2, 0, 1}).slice(1, 1, 3)},
        {"nhwc", Tensor::uniform(context, {2, 3, 4, 5}).contiguous_nhwc()},
        {"zeros", Tensor::zeros(context, {3})},
        {"expanded", Tensor::full(context, {1}, 2).expand({3, 2})}};
    save_safetensors(tensors, path());
    SafetensorsFile file(path());
    for (const auto& [name, x] : tensors) {
      const Tensor y = file.load(context, name);
      EXPECT_TRUE(y.is_contiguous()) << name;
      EXPECT_EQ(values_of(y), values_of(x)) << name;
    }
  });
}

TEST_F(Safetensors, LargerThanTheStagingBuffer) {
  on_every_device([&](const Context& context) {
    const Tensor x = Tensor::uniform(context, {3, 1'000'001});  // 12 MB, no multiple of the chunk
    save_safetensors(std::vector<NamedTensor>{{"x", x}}, path());
    EXPECT_EQ(bits_of(load_safetensors(context, path())[0].tensor), bits_of(x));
  });
}

TEST_F(Safetensors, LoadsIntoTensorsOfAnyStrides) {
  on_every_device([&](const Context& context) {
    const Tensor x = Tensor::uniform(context, {2, 3, 4, 5});
    save_safetensors(std::vector<NamedTensor>{{"x", x}}, path());
    SafetensorsFile file(path());
    Tensor row_major = Tensor::full(context, {2, 3, 4, 5}, NAN);
    Tensor nhwc = Tensor::empty_nhwc(context, {2, 3, 4, 5});
    Tensor base = Tensor::full(context, {2, 3, 4, 7}, -1);
    Tensor zeros = Tensor::zeros(context, {2, 3, 4, 5});
    const auto version = zeros.version();
    for (const Tensor& target : {row_major, nhwc, base.slice(3, 1, 6), zeros}) {
      file.load_into(target, "x");
      EXPECT_EQ(values_of(target), values_of(x));
    }
    EXPECT_EQ(values_of(base.slice(3, 0, 1)), std::vector<double>(24, -1.0));
    EXPECT_FALSE(zeros.known_zero());
    EXPECT_NE(zeros.version(), version);

    expect_contains(message_of<ShapeError>([&] {
                      file.load_into(Tensor::zeros(context, {2, 3, 4}), "x");
                    }),
                    {"'x'", path(), "[2, 3, 4, 5]", "[2, 3, 4]"});
    expect_contains(message_of<DTypeError>([&] {
                      file.load_into(Tensor::zeros(context, {2, 3, 4, 5}, DType::f64), "x");
                    }),
                    {"'x'", "f32", "f64"});
    EXPECT_THROW(file.load_into(Tensor(), "x"), ShapeError);
    expect_contains(message_of<FileError>([&] { (void)file.load(context, "y"); }), {"'y'"});
    EXPECT_EQ(values_of(file.load(context, "x")), values_of(x)) << "usable after an error";
  });
}

TEST_F(Safetensors, LoadingSomeReadsOnlyThose) {
  const Context context;
  save_safetensors(
      std::vector<NamedTensor>{{"large", Tensor::full(context, {1 << 20}, 1, DType::f64)},
                               {"small", Tensor::full(context, {4}, 2)}},
      path());
  const Context fresh;
  SafetensorsFile file(path());
  EXPECT_EQ(fresh.memory().peak_live, 0u);
  EXPECT_EQ(values_of(file.load(fresh, "small")), std::vector<double>(4, 2.0));
  EXPECT_LT(fresh.memory().peak_live, 4096u);
}

TEST_F(Safetensors, ForeignButLegalHeaders) {
  const std::string data = raw<float>({1, 2}) + raw<std::uint8_t>({7});
  for (const std::string header :
       {// Odd lengths, so that the data is misaligned; members and tensors in any order.
        R"({"b":{"shape":[1],"data_offsets":[8,9],"dtype":"U8"},)"
        R"("a":{"data_offsets":[0,8],"shape":[2],"dtype":"F32"}})",
        R"({ "a" : { "dtype" : "F32" , "shape" : [ 2 ] , "data_offsets" : [ 0 , 8 ] } ,)"
        R"( "\u0062" : {"dtype":"\u00558","shape":[1],"data_offsets":[8,9]} }   )",
        // Empty tensors share their offsets.
        R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{},)"
        R"("z":{"dtype":"F32","shape":[0,9],"data_offsets":[8,8]},)"
        R"("y":{"dtype":"F64","shape":[0],"data_offsets":[0,0]},)"
        R"("b":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1],"data_offsets":[8,9]}})"}) {
    write(file_of(header, data));
    SafetensorsFile file(path());
    EXPECT_EQ(values_of(file.load(Context(), "a")), (std::vector<double>{1, 2})) << header;
    EXPECT_EQ(file.load(Context(), "b").item(), 7) << header;
  }
}

// --- malformed files ----------------------------------------------------------------------------

/// One tensor 'w' described by `members`, and four floats of data.
std::string with_members(const std::string& members) {
  return file_of(R"({"w":{)" + members + "}}", raw<float>({1, 2, 3, 4}));
}

TEST_F(Safetensors, MalformedHeaders) {
  expect_error("", {"length"});
  expect_error("1234567", {"length"});
  expect_error(little_endian(0), {"JSON"});
  expect_error(little_endian(1) + "{", {"JSON"});
  expect_error(little_endian(3) + "{}", {"claims 3"});
  expect_error(little_endian(100'000'001) + "{}", {"claims 100000001"});
  expect_error(little_endian(~std::uint64_t{0}) + "{}", {"claims 18446744073709551615"});
  expect_error(little_endian(~std::uint64_t{7}) + "{}");
  for (const char* header : {"[]",
                             " {}",
                             "null",
                             "{}{}",
                             "{},",
                             "{]",
                             "{\"a\"}",
                             "\xef\xbb\xbf{}",
                             "{\"a\":}",
                             "{\"\xff\":{}}",
                             "{'a':{}}",
                             "{} // no comment",
                             "{\"a\":1}",
                             "{\"a\":\"b\"}",
                             "{\"a\":[]}",
                             "{\"a\":null}",
                             "{\"a\":true}",
                             "{\"a\":{}}",
                             "{\"a\":{\"b\":{}}}",
                             "{\"a\":{\"dtype\":{}}}",
                             "{\"__metadata__\":[]}",
                             "{\"__metadata__\":\"a\"}",
                             "{\"__metadata__\":{\"a\":1}}",
                             "{\"__metadata__\":{\"a\":{}}}",
                             "{\"__metadata__\":{\"a\":[]}}",
                             "{\"__metadata__\":{\"a\":null}}",
                             "{\"__metadata__\":{\"a\":\"b\",\"a\":\"b\"}}",
                             "{\"__metadata__\":{},\"__metadata__\":{}}"})
    expect_error(file_of(header));
  expect_error(file_of(std::string("{}\0 ", 4)));
  expect_error(file_of(std::string("{\"a\0\":{}}", 9)));
  expect_error(file_of(std::string(100'000, '[')));
  expect_error(file_of("{\"a\":" + std::string(100'000, '[')), {"'a'"});
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += "{\"a\":";
  expect_error(file_of(nested), {"'a'"});
  expect_error(file_of("{\"" + std::string(100'000, 'x') + "\":1}"), {"..."});
}

TEST_F(Safetensors, MalformedTensors) {
  const std::string good = R"("dtype":"F32","shape":[4],"data_offsets":[0,16])";
  write(with_members(good));
  EXPECT_EQ(load_safetensors(Context(), path()).size(), 1u);
  for (const char* members :
       {R"("shape":[4],"data_offsets":[0,16])", R"("dtype":"F32","data_offsets":[0,16])",
        R"("dtype":"F32","shape":[4])", R"("dtype":"F32","dtype":"F32")",
        R"("dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":[4],"data_offsets":[0,16],"more":1)",
        R"("dtype":32,"shape":[4],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":4,"data_offsets":[0,16])",
        R"("dtype":"F32","shape":"4","data_offsets":[0,16])",
        R"("dtype":"F32","shape":[4.0],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":[-4],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":["4"],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":[[4]],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":[null],"data_offsets":[0,16])",
        R"("dtype":"F32","shape":[4],"data_offsets":[16])",
        R"("dtype":"F32","shape":[4],"data_offsets":[0,8,16])",
        R"("dtype":"F32","shape":[4],"data_offsets":[])",
        R"("dtype":"F32","shape":[4],"data_offsets":[0,1e1])",
        R"("dtype":"F32","shape":[4],"data_offsets":{"a":1})"})
    expect_error(with_members(members), {"'w'"});
  for (const char* dtype :
       {"BOOL", "I8", "I16", "I32", "U16", "U32", "U64", "F8_E4M3", "f32", "F32 ", ""})
    expect_error(
        with_members(fmt::format(R"("dtype":"{}","shape":[4],"data_offsets":[0,16])", dtype)),
        {"'w'", "element type", dtype});
}

TEST_F(Safetensors, OffsetsThatDoNotCoverTheData) {
  const auto two = [](int a0, int a1, int b0, int b1) {
    return file_of(fmt::format(R"({{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}},)"
                               R"("b":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}}}})",
                               std::abs(a1 - a0), a0, a1, std::abs(b1 - b0), b0, b1),
                   "0123456789");
  };
  write(two(0, 4, 4, 10));
  EXPECT_EQ(load_safetensors(Context(), path()).size(), 2u);
  write(two(6, 10, 0, 6));
  EXPECT_EQ(load_safetensors(Context(), path()).size(), 2u);
  expect_error(two(0, 4, 5, 10), {"'b'"});     // a hole
  expect_error(two(1, 4, 4, 10), {"'a'"});     // a hole in front
  expect_error(two(0, 5, 4, 10), {"'b'"});     // an overlap
  expect_error(two(0, 10, 0, 10), {"'b'"});    // one place for two
  expect_error(two(0, 4, 4, 9), {"9 of 10"});  // data that is nobody's
  expect_error(two(0, 4, 4, 11), {"'b'"});     // more than there is
  expect_error(two(0, 4, 10, 4), {"'b'"});     // backwards
  expect_error(file_of("{}", "x"), {"0 of 1"});
  expect_error(with_members(R"("dtype":"F32","shape":[3],"data_offsets":[0,16])"),
               {"'w'", "12 bytes, not 16"});
  expect_error(with_members(R"("dtype":"F64","shape":[4],"data_offsets":[0,16])"), {"'w'"});
  expect_error(with_members(R"("dtype":"F32","shape":[],"data_offsets":[0,16])"), {"'w'"});
}

TEST_F(Safetensors, SizesThatOverflow) {
  for (const char* shape :
       {"9223372036854775807", "9223372036854775808", "18446744073709551615",
        "18446744073709551616", "4294967296,4294967296", "4611686018427387905",
        "2305843009213693953,8", "0,9223372036854775807,3", "9223372036854775807,3,0",
        "4294967296,4294967296,4294967296,4294967296", "1000000000000"})
    expect_error(
        with_members(fmt::format(R"("dtype":"F32","shape":[{}],"data_offsets":[0,16])", shape)),
        {"'w'"});
  expect_error(with_members(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16])"),
               {"'w'", "rank"});
  expect_error(
      with_members(R"("dtype":"F32","shape":[4],"data_offsets":[18446744073709551600,0])"));
  expect_error(
      with_members(R"("dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616])"));
}

TEST_F(Safetensors, TwoTensorsOfOneName) {
  const std::string w = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_error(file_of(fmt::format(R"({{"w":{},"w":{}}})", w, w), "x"), {"'w' appears twice"});
  expect_error(file_of(fmt::format(R"({{"w":{},"\u0077":{}}})", w, w), "x"), {"'w' appears twice"});
}

std::string small_file() {
  std::string header =
      R"({"__metadata__":{"k":"v"},"w":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("b":{"dtype":"U8","shape":[3],"data_offsets":[8,11]}})";
  while (header.size() % 8 != 0) header += ' ';
  return file_of(header, raw<float>({1, 2}) + "abc");
}

TEST_F(Safetensors, EveryTruncationIsAnError) {
  const std::string whole = small_file();
  write(whole);
  EXPECT_EQ(load_safetensors(Context(), path()).size(), 2u);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    SCOPED_TRACE(fmt::format("cut to {}", size));
    expect_error(whole.substr(0, size));
  }
  expect_error(whole + '\0');
}

/// A changed byte may give another legal file (a letter of a name, say); then what is loaded is no
/// more than what was there.
TEST_F(Safetensors, NoChangedByteCrashes) {
  const std::string whole = small_file();
  const std::size_t data_at = whole.size() - 11;
  const Context context;
  int loaded = 0, refused = 0;
  for (std::size_t at = 0; at < whole.size(); ++at)
    for (int change = 1; change < 256; change += at < data_at ? 1 : 51) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ change);
      write(bytes);
      try {
        std::size_t total = 0;
        for (const NamedTensor& named : load_safetensors(context, path()))
          total += named.tensor.bytes();
        EXPECT_EQ(total, 11u);
        ++loaded;
      } catch (const FileError&) {
        ++refused;
        EXPECT_LT(at, data_at);
      } catch (const std::exception& error) {
        ADD_FAILURE() << "byte " << at << " ^ " << change << ": " << error.what();
      }
    }
  EXPECT_GT(loaded, 100);
  EXPECT_GT(refused, 10'000);
  EXPECT_LT(context.memory().peak_live, 1u << 20);
}

TEST_F(Safetensors, MissingFilesAndFolders) {
  for (const std::string& missing :
       {path("missing"), std::string(fs::path(path()).parent_path()), std::string()})
    EXPECT_THROW((void)load_safetensors(Context(), missing), FileError) << missing;
}

TEST_F(Safetensors, AFileCutShortWhileOpen) {
  const Context context;
  save_safetensors(std::vector<NamedTensor>{{"w", Tensor::full(context, {100'000}, 1)}}, path());
  SafetensorsFile file(path());
  fs::resize_file(path(), 5000);
  expect_contains(message_of<FileError>([&] { (void)file.load(context, "w"); }), {path(), "'w'"});
}

// --- saves that fail ----------------------------------------------------------------------------

TEST_F(Safetensors, BadListsAreRefusedBeforeAnythingIsWritten) {
  const Tensor x = Tensor::full(Context(), {2}, 1);
  const auto refused = [&](const std::vector<NamedTensor>& tensors, const FileMetadata& metadata,
                           std::initializer_list<std::string> parts) {
    expect_contains(message_of<FileError>([&] { save_safetensors(tensors, path(), metadata); }),
                    parts);
    EXPECT_TRUE(names().empty());
  };
  refused({{"w", x}, {"v", x}, {"w", x.to(DType::f64)}}, {}, {path(), "'w'", "twice"});
  refused({{"__metadata__", x}}, {}, {"reserved"});
  refused({{"w", Tensor()}}, {}, {"'w'", "undefined"});
  refused({{"\xff", x}}, {}, {"UTF-8"});
  refused({{"w", x}}, {{"k", "\xc3"}}, {"UTF-8"});
  refused({{"w", x}}, {{"k", std::string(100'000'000, 'x')}}, {"header"});
}

TEST_F(Safetensors, FailedSavesLeaveNothing) {
  const std::vector<NamedTensor> tensors{{"x", Tensor::full(Context(), {1000}, 1)}};
  EXPECT_THROW(save_safetensors(tensors, path("no/such/folder")), FileError);
  EXPECT_TRUE(names().empty());
  fs::create_directories(path("taken/inside"));  // the name is a folder that is not empty
  EXPECT_THROW(save_safetensors(tensors, path("taken")), FileError);
  EXPECT_EQ(names(), (std::vector<std::string>{"taken"}));
}

TEST_F(Safetensors, AWriteThatFailsHalfwayLeavesTheOldFile) {
  const Context context;
  save_safetensors(std::vector<NamedTensor>{{"x", Tensor::full(context, {3}, 2)}}, path());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    save_safetensors(std::vector<NamedTensor>{{"x", Tensor::full(context, {100'000}, 1)}}, path());
  } catch (const FileError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  expect_contains(message, {path(), std::strerror(EFBIG)});
  EXPECT_EQ(names(), (std::vector<std::string>{"x.safetensors"}));
  EXPECT_EQ(values_of(load_safetensors(context, path())[0].tensor), std::vector<double>(3, 2.0));
}

TEST_F(Safetensors, SavingReplacesAtOnce) {
  const Context context;
  save_safetensors(std::vector<NamedTensor>{{"x", Tensor::full(context, {1000}, 1)}}, path());
  SafetensorsFile reader(path());  // of the old content
  save_safetensors(std::vector<NamedTensor>{{"x", Tensor::full(context, {3}, 2)}}, path());
  EXPECT_EQ(values_of(reader.load(context, "x")), std::vector<double>(1000, 1.0));
  EXPECT_EQ(values_of(load_safetensors(context, path())[0].tensor), std::vector<double>(3, 2.0));
  EXPECT_EQ(names(), (std::vector<std::string>{"x.safetensors"}));
  // A name without a folder means the current one.
  const fs::path here = fs::current_path();
  fs::current_path(fs::path(path()).parent_path());
  save_safetensors(std::vector<NamedTensor>{{"x", Tensor::full(context, {4}, 3)}}, "y");
  fs::current_path(here);
  EXPECT_EQ(values_of(load_safetensors(context, path("y"))[0].tensor), std::vector<double>(4, 3.0));
}

}  // namespace
}  // namespace zerone::test
