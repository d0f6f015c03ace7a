#include <zerone/core/safetensors.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <utility>

#include <zerone/core/context_state.h>
#include <zerone/core/error.h>

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

namespace zerone {
namespace {

using nlohmann::json;

constexpr std::uint64_t max_header = 100'000'000;
constexpr std::size_t chunk = std::size_t{4} << 20;  // bytes on their way between file and GPU
constexpr std::string_view metadata_name = "__metadata__";

/// Names of the element types, in the order in which they are written.
constexpr std::pair<DType, std::string_view> dtype_names[] = {
    {DType::i64, "I64"},   {DType::f64, "F64"}, {DType::f32, "F32"},
    {DType::bf16, "BF16"}, {DType::f16, "F16"}, {DType::u8, "U8"}};

const auto* find_dtype(DType dtype) {
  return std::find_if(std::begin(dtype_names), std::end(dtype_names),
                      [&](const auto& known) { return known.first == dtype; });
}

/// For messages: a hostile file chooses its names.
std::string named(std::string_view name) {
  constexpr std::size_t limit = 200;
  return fmt::format("'{}{}'", name.substr(0, limit), name.size() > limit ? "..." : "");
}

[[noreturn]] void fail_for(const std::string& path, const std::string& what) {
  throw FileError(fmt::format("[safetensors] {}: {}", path, what));
}

/// What the header says of one tensor.
struct Info {
  std::string name;
  DType dtype{};
  std::vector<std::int64_t> sizes;
  std::vector<std::uint64_t> offsets;  // begin and end in the data
};

/// Takes the header's JSON event by event and refuses the first that the format does not have, so
/// nothing is built that does not belong.
class HeaderReader final : public nlohmann::json_sax<json> {
 public:
  explicit HeaderReader(const std::string& path) : path_(path) {}

  std::vector<Info> tensors;
  FileMetadata metadata;

  bool start_object(std::size_t) override {
    if (in_ == In::start) return go(In::header);
    if (in_ != In::header) fail("an object where none belongs");
    if (key_ == metadata_name) return go(In::metadata);
    seen_ = {};
    tensors.push_back({.name = key_, .dtype = {}, .sizes = {}, .offsets = {}});
    return go(In::tensor);
  }

  bool key(std::string& key) override {
    if (in_ == In::header) {
      if (!names_.insert(key).second) fail_for(path_, named(key) + " appears twice");
    } else if (in_ == In::metadata) {
      if (metadata.contains(key)) fail(named(key) + " appears twice");
    } else {
      const auto field = std::find(fields.begin(), fields.end(), key);
      if (field == fields.end()) fail("unknown member " + named(key));
      if (std::exchange(seen_[static_cast<std::size_t>(field - fields.begin())], true))
        fail(named(key) + " appears twice");
    }
    (in_ == In::tensor ? field_ : key_) = key;
    return true;
  }

  bool string(std::string& text) override {
    if (in_ == In::metadata) {
      metadata[key_] = text;
      return true;
    }
    if (in_ != In::tensor || field_ != "dtype") fail("a string where none belongs");
    const auto* known = std::find_if(std::begin(dtype_names), std::end(dtype_names),
                                     [&](const auto& entry) { return entry.second == text; });
    if (known == std::end(dtype_names))
      fail(fmt::format("element type {} is not supported", named(text)));
    tensors.back().dtype = known->first;
    return true;
  }

  bool start_array(std::size_t) override {
    if (in_ == In::tensor && field_ == "shape") return go(In::shape);
    if (in_ == In::tensor && field_ == "data_offsets") return go(In::offsets);
    fail("an array where none belongs");
  }

  bool number_unsigned(std::uint64_t number) override {
    if (in_ == In::shape) {
      if (tensors.back().sizes.size() == max_rank)
        fail(fmt::format("the rank is above the limit of {}", max_rank));
      if (number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail("a size in the shape is too large");
      tensors.back().sizes.push_back(static_cast<std::int64_t>(number));
    } else if (in_ == In::offsets && tensors.back().offsets.size() < 2) {
      tensors.back().offsets.push_back(number);
    } else {
      fail("a number where none belongs");
    }
    return true;
  }

  bool end_array() override {
    if (in_ == In::offsets && tensors.back().offsets.size() != 2)
      fail("data_offsets are not a begin and an end");
    return go(In::tensor);
  }

  bool end_object() override {
    if (in_ == In::tensor && seen_ != std::array{true, true, true})
      fail("dtype, shape or data_offsets are missing");
    return go(In::header);
  }

  bool null() override { fail("null where none belongs"); }
  bool boolean(bool) override { fail("a truth value where none belongs"); }
  bool number_integer(std::int64_t) override { fail("a negative number"); }
  bool number_float(double, const std::string&) override {
    fail("a number that is no 64-bit integer");
  }
  bool binary(json::binary_t&) override { return false; }
  bool parse_error(std::size_t at, const std::string&, const json::exception&) override {
    fail_for(path_, fmt::format("the header is not JSON at byte {}", at));
  }

 private:
  enum class In { start, header, metadata, tensor, shape, offsets };
  static constexpr std::array<std::string_view, 3> fields{"dtype", "shape", "data_offsets"};

  bool go(In in) {
    in_ = in;
    return true;
  }
  /// Names the member of the header that is being read.
  [[noreturn]] void fail(const std::string& what) const {
    fail_for(path_, names_.empty() ? "malformed header: " + what
                                   : fmt::format("{}: {}", named(key_of_header()), what));
  }
  std::string_view key_of_header() const {
    return in_ == In::metadata ? metadata_name : std::string_view(key_);
  }

  const std::string& path_;
  In in_ = In::start;
  std::string key_, field_;
  std::array<bool, 3> seen_{};
  std::set<std::string> names_;
};

/// The shape, if tensors can have it.
Shape checked_shape(const Info& info, const std::string& path) {
  try {
    return Shape{std::span<const std::int64_t>(info.sizes)};
  } catch (const ShapeError&) {
    fail_for(path, fmt::format("tensor {}: the shape [{}] is too large", named(info.name),
                               fmt::join(info.sizes, ", ")));
  }
}

/// A file beside `path` that takes its place when it is whole, and goes away if it never is.
class ReplacementFile {
 public:
  explicit ReplacementFile(const std::string& path) : path_(path) {
    static std::atomic<unsigned> serial{0};
    temporary_ = fmt::format("{}.{}.{}.partial", path, getpid(), serial++);
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor_ < 0) fail("cannot be written");
  }
  ~ReplacementFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!temporary_.empty()) std::remove(temporary_.c_str());
  }
  ReplacementFile(const ReplacementFile&) = delete;
  ReplacementFile& operator=(const ReplacementFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const auto* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, from, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) fail("cannot be written");
      from += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    if (::fsync(descriptor_) != 0) fail("cannot be written");
    if (::close(std::exchange(descriptor_, -1)) != 0) fail("cannot be written");
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be replaced");
    temporary_.clear();
    // The new name must survive a crash as well. Some file systems cannot be asked for that.
    const auto folder = std::filesystem::path(path_).parent_path();
    descriptor_ = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor_ >= 0 && ::fsync(descriptor_) != 0 && errno != EINVAL)
      fail("its folder cannot be written");
  }

 private:
  [[noreturn]] void fail(const char* what) const {
    fail_for(path_, fmt::format("{}: {}", what, std::strerror(errno)));
  }

  std::string path_, temporary_;
  int descriptor_ = -1;
};

void write_tensor(ReplacementFile& file, const Tensor& tensor) {
  if (tensor.numel() == 0) return;
  const Tensor x = tensor.contiguous();
  const auto* from = static_cast<const std::byte*>(x.data());
  if (!x.device().is_cuda()) return file.write(from, x.bytes());
  std::vector<std::byte> staging(std::min(x.bytes(), chunk));
  for (std::size_t done = 0; done < x.bytes(); done += staging.size()) {
    const std::size_t part = std::min(staging.size(), x.bytes() - done);
    x.context().state().backend->download(staging.data(), from + done, part);
    file.write(staging.data(), part);
  }
}

/// A JSON string.
std::string encoded(std::string_view text, const std::string& path) {
  try {
    return json(text).dump();
  } catch (const json::exception&) {
    fail_for(path, "a name or metadata is not UTF-8");
  }
}

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  std::error_code error;
  const std::uintmax_t file_bytes = std::filesystem::file_size(path, error);
  if (error) fail(error.message());
  file_.open(path, std::ios::binary);
  if (!file_) fail("cannot be opened");

  std::uint64_t header_bytes = 0;
  if (file_bytes < sizeof(header_bytes) ||
      !file_.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes)))
    fail("the file ends inside the header's length");
  const std::uintmax_t rest = file_bytes - sizeof(header_bytes);
  if (header_bytes > max_header || header_bytes > rest)
    fail(fmt::format("the header claims {} bytes; the file has {}, and the limit is {}",
                     header_bytes, rest, max_header));
  std::string text(header_bytes, '\0');
  if (!file_.read(text.data(), static_cast<std::streamsize>(header_bytes)))
    fail("the file ends inside the header");
  // The parser would take a byte order mark for nothing and a NUL for the end.
  if (!text.starts_with('{') || text.find('\0') != text.npos)
    fail("malformed header: it is not one JSON object");
  HeaderReader reader(path_);
  json::sax_parse(text, &reader);
  metadata_ = std::move(reader.metadata);

  const std::uint64_t data_begin = sizeof(header_bytes) + header_bytes;
  const std::uint64_t data_bytes = file_bytes - data_begin;
  std::uint64_t covered = 0;
  std::sort(reader.tensors.begin(), reader.tensors.end(),
            [](const Info& a, const Info& b) { return a.offsets < b.offsets; });
  for (Info& info : reader.tensors) {
    const std::uint64_t begin = info.offsets[0], end = info.offsets[1];
    if (begin != covered || end < begin || end > data_bytes)
      fail(
          fmt::format("tensor {}: bytes {} to {} leave a hole, overlap or lie outside; {} of {} "
                      "bytes lie before",
                      named(info.name), begin, end, covered, data_bytes));
    covered = end;
    const Shape shape = checked_shape(info, path_);
    const std::uint64_t bytes = static_cast<std::uint64_t>(shape.numel()) * size_of(info.dtype);
    if (end - begin != bytes)
      fail(fmt::format("tensor {}: {} {} needs {} bytes, not {}", named(info.name),
                       to_string(info.dtype), to_string(shape), bytes, end - begin));
    entries_[std::move(info.name)] = {info.dtype, shape, data_begin + begin};
  }
  if (covered != data_bytes)
    fail(fmt::format("the tensors cover {} of {} bytes of data", covered, data_bytes));
}

void SafetensorsFile::fail(const std::string& what) const {
  fail_for(path_, what);
}

const SafetensorsFile::Entry& SafetensorsFile::entry(std::string_view name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) fail(fmt::format("there is no tensor {}", named(name)));
  return found->second;
}

Tensor SafetensorsFile::load(const Context& context, std::string_view name) {
  const Entry& from = entry(name);
  Tensor tensor = Tensor::empty(context, from.shape, from.dtype);
  read(tensor, from, name);
  return tensor;
}

void SafetensorsFile::load_into(Tensor target, std::string_view name) {
  const Entry& from = entry(name);
  const auto what = [&] {
    return fmt::format("[safetensors] {}: tensor {} is {} {}, the target {}", path_, named(name),
                       to_string(from.dtype), to_string(from.shape), describe(target));
  };
  if (!target.defined() || target.shape() != from.shape) throw ShapeError(what());
  if (target.dtype() != from.dtype) throw DTypeError(what());
  if (target.is_contiguous()) return read(target, from, name);
  target.copy_(load(target.context(), name));
}

/// `target` is row-major and fits.
void SafetensorsFile::read(Tensor& target, const Entry& from, std::string_view name) {
  const std::size_t bytes = target.bytes();
  if (bytes == 0) return;
  auto* into = static_cast<std::byte*>(target.mutable_data());
  const bool direct = !target.device().is_cuda();
  std::vector<std::byte> staging(direct ? 0 : std::min(bytes, chunk));
  file_.clear();
  file_.seekg(static_cast<std::streamoff>(from.begin));
  for (std::size_t done = 0, part = 0; done < bytes; done += part) {
    part = direct ? bytes : std::min(staging.size(), bytes - done);
    std::byte* landing = direct ? into : staging.data();
    if (!file_.read(reinterpret_cast<char*>(landing), static_cast<std::streamsize>(part)))
      fail(fmt::format("tensor {} cannot be read; was the file changed?", named(name)));
    if (!direct) target.context().state().backend->upload(into + done, landing, part);
  }
}

std::vector<NamedTensor> load_safetensors(const Context& context, const std::string& path) {
  SafetensorsFile file(path);
  std::vector<NamedTensor> tensors;
  tensors.reserve(file.entries().size());
  for (const auto& [name, entry] : file.entries())
    tensors.push_back({name, file.load(context, name)});
  return tensors;
}

void save_safetensors(std::span<const NamedTensor> tensors, const std::string& path,
                      const FileMetadata& metadata) {
  std::vector<const NamedTensor*> sorted;
  std::set<std::string_view> names;
  for (const NamedTensor& entry : tensors) {
    if (!entry.tensor.defined())
      fail_for(path, fmt::format("tensor {} is undefined", named(entry.name)));
    if (entry.name == metadata_name || !names.insert(entry.name).second)
      fail_for(path, fmt::format("the name {} is {}", named(entry.name),
                                 entry.name == metadata_name ? "reserved" : "listed twice"));
    sorted.push_back(&entry);
  }
  const auto place = [](const NamedTensor* entry) {
    return std::tuple(find_dtype(entry->tensor.dtype()), std::string_view(entry->name));
  };
  std::sort(sorted.begin(), sorted.end(),
            [&](const NamedTensor* a, const NamedTensor* b) { return place(a) < place(b); });

  std::vector<std::string> members;
  if (!metadata.empty()) {
    std::vector<std::string> texts;
    for (const auto& [key, text] : metadata)
      texts.push_back(fmt::format("{}:{}", encoded(key, path), encoded(text, path)));
    members.push_back(fmt::format("\"{}\":{{{}}}", metadata_name, fmt::join(texts, ",")));
  }
  std::size_t end = 0;
  for (const NamedTensor* entry : sorted) {
    const Tensor& x = entry->tensor;
    const Shape shape = x.shape();
    const std::size_t begin = std::exchange(end, end + x.bytes());
    members.push_back(fmt::format(R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                                  encoded(entry->name, path), find_dtype(x.dtype())->second,
                                  fmt::join(shape.begin(), shape.end(), ","), begin, end));
  }
  std::string header = fmt::format("{{{}}}", fmt::join(members, ","));
  header.resize((header.size() + 7) / 8 * 8, ' ');
  if (header.size() > max_header)
    fail_for(path, fmt::format("the header of {} bytes is above the limit of {}", header.size(),
                               max_header));

  ReplacementFile file(path);
  const std::uint64_t length = header.size();
  file.write(&length, sizeof(length));
  file.write(header.data(), header.size());
  for (const NamedTensor* entry : sorted) write_tensor(file, entry->tensor);
  file.commit();
}

}  // namespace zerone
