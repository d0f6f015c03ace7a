// NumPy files in and out, and the malformed ones.
#include <sys/resource.h>
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <zerone/zerone.h>

#include "support/contexts.h"

namespace zerone {
namespace {

namespace fs = std::filesystem;
using test::on_every_device;

std::vector<double> values_of(const Tensor& x) {
  return x.to(DType::f64).to_vector<double>();
}

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

template <class T>
std::string raw(const std::vector<T>& values, bool big_endian = false) {
  std::string bytes;
  for (const T& value : values) {
    char item[sizeof(T)];
    std::memcpy(item, &value, sizeof(T));
    if (big_endian) std::reverse(item, item + sizeof(T));
    bytes.append(item, sizeof(T));
  }
  return bytes;
}

/// A file as NumPy writes it; the header is padded to `multiple`.
std::string npy(const std::string& dictionary, const std::string& data, int version = 1,
                std::size_t multiple = 64) {
  const std::size_t preamble = version == 1 ? 10 : 12;
  std::string header = dictionary;
  while ((preamble + header.size() + 1) % multiple != 0) header += ' ';
  header += '\n';
  std::string file = "\x93NUMPY";
  file += static_cast<char>(version);
  file += '\0';
  for (std::size_t i = 0; i < preamble - 8; ++i)
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + data;
}

std::string dictionary(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }";
}

/// A folder of its own, removed at the end; checks that no test leaves a file open.
class Npy : public ::testing::Test {
 protected:
  void SetUp() override {
    const fs::path fast = "/dev/shm";  // thousands of small files are written
    folder_ = (access(fast.c_str(), W_OK) == 0 ? fast : fs::temp_directory_path()) /
              ("zerone_npy_" + std::to_string(getpid()) + "_" +
               ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(folder_);
    (void)test::contexts();  // a GPU's driver keeps files open
    open_ = open_files();
  }
  void TearDown() override {
    EXPECT_EQ(open_files(), open_) << "a file was left open";
    fs::remove_all(folder_);
  }
  std::string path(const std::string& name = "x.npy") const { return folder_ / name; }
  std::string write(const std::string& bytes) const {
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  Tensor load(const std::string& bytes) const { return load_npy(Context(), write(bytes)); }
  /// Loads a malformed file: a FileError that names it, and less than a mebibyte allocated.
  void expect_error(const std::string& bytes, const std::string& part = {}) const {
    const Context context;
    write(bytes);
    try {
      (void)load_npy(context, path());
      FAIL() << "it was loaded";
    } catch (const FileError& error) {
      EXPECT_NE(std::string(error.what()).find(path()), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
    EXPECT_LT(context.memory().peak_live, 1u << 20);
    EXPECT_EQ(open_files(), open_);
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

// --- H24 ----------------------------------------------------------------------------------------

TEST_F(Npy, H24a_HeaderLengthOfFourGigabytes) {
  expect_error(std::string("\x93NUMPY\x02\x00\xf0\xff\xff\xff", 12), "4294967280");
  expect_error(std::string("\x93NUMPY\x03\x00\xff\xff\xff\x7f", 12));
  expect_error(std::string("\x93NUMPY\x01\x00\xff\xff", 10));
}

TEST_F(Npy, H24b_ShapeWhoseProductWraps) {
  expect_error(npy(dictionary("<f4", "(8589934592, 8589934592)"), "xxxx"));
  expect_error(npy(dictionary("<f8", "(2305843009213693952,)"), "xxxx"));  // 2^61 * 8 = 2^64
  expect_error(npy(dictionary("|u1", "(4294967296, 4294967296, 4294967296)"), "xxxx"));
  expect_error(npy(dictionary("<f4", "(99999999999999999999999,)"), "xxxx"), "large");
  expect_error(npy(dictionary("<f4", "(0, 8589934592, 8589934592)"), ""));
  expect_error(npy(dictionary("<f4", "(8589934592, 8589934592, 0)"), ""));
  expect_error(npy(dictionary("<f4", "(1099511627776,)"), "xxxx"), "4398046511104");
}

TEST_F(Npy, H24c_HeaderOfThreeHundredBytes) {
  const std::string file = npy(dictionary("<f4", "(3,)"), raw<float>({1, 2, 3}), 1, 310);
  ASSERT_EQ(file.size(), 310u + 12);
  EXPECT_EQ(values_of(load(file)), (std::vector<double>{1, 2, 3}));
}

TEST_F(Npy, H24d_FortranOrder) {
  const Tensor x = load(npy(dictionary("<f4", "(2, 3)", true), raw<float>({1, 4, 2, 5, 3, 6})));
  EXPECT_EQ(x.shape(), (Shape{2, 3}));
  EXPECT_EQ(values_of(x), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  const Tensor y = load(npy(dictionary("<i8", "(2, 1, 2)", true), raw<std::int64_t>({0, 2, 1, 3})));
  EXPECT_EQ(y.shape(), (Shape{2, 1, 2}));
  EXPECT_EQ(values_of(y), (std::vector<double>{0, 1, 2, 3}));
  on_every_device([&](const Context& context) {
    write(npy(dictionary(">f8", "(2, 3)", true), raw<double>({1, 4, 2, 5, 3, 6}, true)));
    EXPECT_EQ(values_of(load_npy(context, path())), (std::vector<double>{1, 2, 3, 4, 5, 6}));
  });
}

TEST_F(Npy, H24e_BigEndian) {
  const std::vector<double> expected{1, -2, 3};
  EXPECT_EQ(values_of(load(npy(dictionary(">f4", "(3,)"), raw<float>({1, -2, 3}, true)))),
            expected);
  EXPECT_EQ(values_of(load(npy(dictionary(">f8", "(3,)"), raw<double>({1, -2, 3}, true)))),
            expected);
  EXPECT_EQ(values_of(load(npy(dictionary(">i8", "(3,)"), raw<std::int64_t>({1, -2, 3}, true)))),
            expected);
  EXPECT_EQ(values_of(load(npy(dictionary(">i4", "(3,)"), raw<std::int32_t>({1, -2, 3}, true)))),
            expected);
  EXPECT_EQ(values_of(load(npy(dictionary(">i2", "(3,)"), raw<std::int16_t>({1, -2, 3}, true)))),
            expected);
  EXPECT_EQ(values_of(load(npy(dictionary(">f2", "(1,)"), std::string("\x3c\x00", 2)))),
            (std::vector<double>{1}));
}

TEST_F(Npy, H24f_FileCutShort) {
  const std::string whole = npy(dictionary("<f4", "(3,)"), raw<float>({1, 2, 3}));
  expect_error(whole.substr(0, whole.size() - 1), "12");
}

TEST_F(Npy, EveryTruncationIsAnError) {
  for (const int version : {1, 2, 3}) {
    const std::string whole = npy(dictionary("<f4", "(2, 2)"), raw<float>({1, 2, 3, 4}), version);
    EXPECT_EQ(values_of(load(whole)), (std::vector<double>{1, 2, 3, 4}));
    for (std::size_t size = 0; size < whole.size(); ++size) {
      SCOPED_TRACE("cut to " + std::to_string(size));
      expect_error(whole.substr(0, size));
    }
  }
}

TEST_F(Npy, H24g_ScalarsAndEmptyArrays) {
  const Tensor scalar = load(npy(dictionary("<f8", "()"), raw<double>({2.5})));
  EXPECT_EQ(scalar.rank(), 0);
  EXPECT_EQ(scalar.item(), 2.5);
  const Tensor empty = load(npy(dictionary("<f4", "(0,)"), ""));
  EXPECT_EQ(empty.shape(), (Shape{0}));
  EXPECT_EQ(load(npy(dictionary("<f4", "(3, 0, 2)", true), "")).shape(), (Shape{3, 0, 2}));
}

// --- good files ---------------------------------------------------------------------------------

TEST_F(Npy, RoundTripsEveryTypeAndShape) {
  on_every_device([&](const Context& context) {
    for (const DType dtype : {DType::f64, DType::f32, DType::f16, DType::i64, DType::u8})
      for (const Shape& shape : {Shape{}, Shape{1}, Shape{5}, Shape{0}, Shape{2, 0, 3},
                                 Shape{2, 3, 4}, Shape{1, 2, 1, 2, 1, 2, 1, 2}}) {
        SCOPED_TRACE(to_string(dtype) + " " + to_string(shape));
        const Tensor x =
            affine(Tensor::uniform(context, shape, 0, 1, DType::f64), 100).value().to(dtype);
        save_npy(x, path());
        const Tensor y = load_npy(context, path());
        EXPECT_EQ(y.dtype(), dtype);
        EXPECT_EQ(y.shape(), shape);
        EXPECT_EQ(y.context(), context);
        EXPECT_EQ(values_of(y), values_of(x));
        EXPECT_EQ(fs::file_size(path()) % 64, (x.bytes()) % 64) << "NumPy aligns the data";
      }
  });
}

TEST_F(Npy, SpecialValuesSurvive) {
  const double inf = std::numeric_limits<double>::infinity();
  save_npy(Tensor::from<double>(Context(), {4}, {inf, -inf, -0.0, std::nan("")}), path());
  const std::vector<double> values = load_npy(Context(), path()).to_vector<double>();
  EXPECT_EQ(values[0], inf);
  EXPECT_EQ(values[1], -inf);
  EXPECT_TRUE(std::signbit(values[2]));
  EXPECT_TRUE(std::isnan(values[3]));
}

TEST_F(Npy, ViewsAreSavedRowMajor) {
  on_every_device([&](const Context& context) {
    const Tensor x = Tensor::uniform(context, {4, 5, 6}).permute({2, 0, 1}).slice(1, 1, 3);
    save_npy(x, path());
    EXPECT_EQ(values_of(load_npy(context, path())), values_of(x));
    save_npy(Tensor::zeros(context, {3}), path());
    EXPECT_EQ(values_of(load_npy(context, path())), std::vector<double>(3, 0.0));
    save_npy(Tensor::full(context, {1}, 2).expand({3, 2}), path());
    EXPECT_EQ(values_of(load_npy(context, path())), std::vector<double>(6, 2.0));
  });
}

TEST_F(Npy, WritesTheFormatByte) {
  save_npy(Tensor::from<float>(Context(), {2, 1}, {1, 2}), path());
  std::ifstream in(path(), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  EXPECT_EQ(bytes,
            npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1), }", raw<float>({1, 2})));
}

TEST_F(Npy, SmallIntegersAreWidened) {
  const Tensor x = load(npy(dictionary("<i4", "(3,)"), raw<std::int32_t>({1, -2, 1 << 30})));
  EXPECT_EQ(x.dtype(), DType::i64);
  EXPECT_EQ(x.to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, -2, 1 << 30}));
  const Tensor y = load(npy(dictionary("<i2", "(2,)"), raw<std::int16_t>({-32768, 5})));
  EXPECT_EQ(y.to_vector<std::int64_t>(), (std::vector<std::int64_t>{-32768, 5}));
}

TEST_F(Npy, HeaderSpellings) {
  const std::string data = raw<float>({1, 2});
  const std::string spellings[] = {
      "{'shape': (2,), 'fortran_order': False, 'descr': '<f4'}",
      "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (2,)}",
      "{'descr':'<f4','fortran_order':False,'shape':(2,),}",
      "{ 'descr' : '=f4' , 'fortran_order' : False , 'shape' : ( 2 , ) , }",
  };
  for (const std::string& spelling : spellings)
    EXPECT_EQ(values_of(load(npy(spelling, data))), (std::vector<double>{1, 2})) << spelling;
}

// --- malformed files ----------------------------------------------------------------------------

TEST_F(Npy, MalformedHeaders) {
  const std::string data = raw<double>({1, 2, 3, 4});
  expect_error("");
  expect_error("not numpy at all, but long enough", "not an .npy file");
  expect_error(npy(dictionary("<f4", "(2,)"), data, 4), "version 4");
  for (const char* descr : {"<c8", "<f16", "<U4", "|O", "<i1", "<u2", "f4", "", "<f", "<f44", "xf4",
                            "<f3", "<f0", "|b1"})
    expect_error(npy(dictionary(descr, "(2,)"), data));
  for (const char* shape :
       {"(-2,)", "(2", "2", "(2, x)", "(,)", "(1,1,1,1,1,1,1,1,1)", "[2]", "", "(2.5,)", "(2,,2)"})
    expect_error(npy(dictionary("<f4", shape), data));
  expect_error(npy("{'descr': '<f4', 'shape': (2,), }", data), "incomplete");
  expect_error(npy("{'descr': '<f4', 'fortran_order': Maybe, 'shape': (2,), }", data));
  expect_error(npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'more': 1}", data),
               "more");
  expect_error(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}", data));
  expect_error(npy("", data));
  expect_error(npy("{", data));
  expect_error(npy("{'descr", data));
  expect_error(npy(std::string(70000, ' '), data, 2));
}

TEST_F(Npy, RandomHeadersNeverCrash) {
  constexpr unsigned seed = 20240229;
  RecordProperty("seed", static_cast<int>(seed));
  std::mt19937 random(seed);
  const std::string whole = npy(dictionary("<f4", "(2, 2)"), raw<float>({1, 2, 3, 4}));
  const std::string alphabet = "'(){}[],:<>|=fiu0123456789 TrueFalse\n-.\"\\\xff";
  const Context context;
  int loaded = 0;
  for (int i = 0; i < 2000; ++i) {
    std::string bytes = whole;
    const int changes = 1 + static_cast<int>(random() % 4);
    for (int c = 0; c < changes; ++c) {
      const std::size_t at = 6 + random() % (whole.size() - 6 - 16);
      switch (random() % 4) {
        case 0: bytes[std::min(at, bytes.size() - 1)] = static_cast<char>(random()); break;
        case 1: bytes[std::min(at, bytes.size() - 1)] = alphabet[random() % alphabet.size()]; break;
        case 2:
          bytes.insert(std::min(at, bytes.size()), 1, alphabet[random() % alphabet.size()]);
          break;
        default: bytes.erase(std::min(at, bytes.size() - 1), 1);
      }
    }
    write(bytes);
    try {
      const Tensor x = load_npy(context, path());
      EXPECT_LE(x.numel(), 1 << 10);
      (void)x.to(DType::f64).to_vector<double>();
      ++loaded;
    } catch (const FileError&) {
    } catch (const std::exception& error) {
      ADD_FAILURE() << "variant " << i << " of seed " << seed << ": " << error.what();
    }
  }
  EXPECT_GT(loaded, 0);
  EXPECT_LT(loaded, 2000);
  EXPECT_LT(context.memory().peak_live, 1u << 20);
}

TEST_F(Npy, MissingFilesAndFolders) {
  EXPECT_THROW((void)load_npy(Context(), path("missing.npy")), FileError);
  EXPECT_THROW((void)load_npy(Context(), fs::path(path()).parent_path()), FileError);
  EXPECT_THROW((void)load_npy(Context(), ""), FileError);
}

TEST_F(Npy, FailedSavesLeaveNothing) {
  const Context context;
  const Tensor x = Tensor::full(context, {1000}, 1);
  EXPECT_THROW(save_npy(x, path("no/such/folder.npy")), FileError);
  EXPECT_TRUE(names().empty());
  // The name is taken by a folder that is not empty.
  fs::create_directories(path("taken.npy/inside"));
  EXPECT_THROW(save_npy(x, path("taken.npy")), FileError);
  EXPECT_EQ(names(), (std::vector<std::string>{"taken.npy"}));
  fs::remove_all(path("taken.npy"));
  EXPECT_THROW(save_npy(x.to(DType::bf16), path()), DTypeError);
  EXPECT_THROW(save_npy(Tensor(), path()), Error);
  EXPECT_TRUE(names().empty());
}

TEST_F(Npy, AWriteThatFailsHalfwayLeavesTheOldFile) {
  const Context context;
  save_npy(Tensor::full(context, {3}, 2), path());
  rlimit old{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{4096, old.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string message;
  try {
    save_npy(Tensor::full(context, {100000}, 1), path());
  } catch (const FileError& error) {
    message = error.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_NE(message.find(path()), std::string::npos) << message;
  EXPECT_EQ(names(), (std::vector<std::string>{"x.npy"}));
  EXPECT_EQ(values_of(load_npy(context, path())), std::vector<double>(3, 2.0));
}

TEST_F(Npy, SavingReplacesAtOnce) {
  const Context context;
  save_npy(Tensor::full(context, {1000}, 1), path());
  std::ifstream reader(path(), std::ios::binary);  // of the old content
  save_npy(Tensor::full(context, {3}, 2), path());
  reader.seekg(0, std::ios::end);
  EXPECT_EQ(reader.tellg(), 128 + 4000);
  reader.close();
  EXPECT_EQ(values_of(load_npy(context, path())), std::vector<double>(3, 2.0));
  EXPECT_EQ(names(), (std::vector<std::string>{"x.npy"}));
}

}  // namespace
}  // namespace zerone
