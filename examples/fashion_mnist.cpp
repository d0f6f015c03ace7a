// Trains a small convolution network on Fashion-MNIST: 28x28 grey images of clothes, 10 classes,
// 60,000 to learn from and 10,000 to be tested on. See docs/fashion_mnist.md.
//
// On a GPU the whole training step (normalization, forward, backward, optimizer) is one CUDA graph
// that every step replays; on the CPU the same code runs eagerly.

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "idx.h"
#include "options.h"
#include "report.h"

using namespace zerone;

namespace {

constexpr std::int64_t side = 28, pixels = side * side, classes = 10;
// Of the training images, as shares of 255.
constexpr double image_mean = 0.2860, image_stddev = 0.3530;

struct Options : options::Common {
  int epochs = 10;
  int batch = 128;
  double learning_rate = 2e-3;
  std::string math = "fp32", layout = "nhwc";
  std::string data = ZERONE_FASHION_MNIST;
  std::int64_t limit = 0;  // 0: all images
  bool augment = false;
  std::string checkpoint, resume, peer;
};

// --- data ---------------------------------------------------------------------------------------

struct Images {
  std::vector<std::uint8_t> pixels;  // (n,28,28)
  std::vector<std::uint8_t> labels;  // (n), below 10
  std::int64_t count() const { return static_cast<std::int64_t>(labels.size()); }
};

Images load_images(const Options& o, const std::string& set) {
  const std::filesystem::path folder(o.data);
  const std::string pixel_file = folder / (set + "-images-idx3-ubyte.gz");
  const std::string label_file = folder / (set + "-labels-idx1-ubyte.gz");
  for (const std::string& file : {pixel_file, label_file})
    if (!std::filesystem::exists(file))
      throw FileError(
          fmt::format("--data {}: there is no {}; the Debian package dataset-fashion-mnist "
                      "installs it in {}",
                      o.data, file, ZERONE_FASHION_MNIST));
  idx::Array images = idx::load(pixel_file, 3), labels = idx::load(label_file, 1);
  if (images.sizes[1] != side || images.sizes[2] != side)
    throw FileError(fmt::format("{}: images of {}x{}, expected {}x{}", pixel_file, images.sizes[1],
                                images.sizes[2], side, side));
  if (images.sizes[0] == 0) throw FileError(fmt::format("{}: holds no images", pixel_file));
  if (labels.sizes[0] != images.sizes[0])
    throw FileError(fmt::format("{}: {} labels, but {} holds {} images", label_file,
                                labels.sizes[0], pixel_file, images.sizes[0]));
  for (std::size_t i = 0; i < labels.values.size(); ++i)
    if (labels.values[i] >= classes)
      throw FileError(fmt::format("{}: label {} is {}; there are {} classes", label_file, i,
                                  labels.values[i], classes));
  if (o.limit > 0 && o.limit < labels.sizes[0]) {
    images.values.resize(static_cast<std::size_t>(o.limit * pixels));
    labels.values.resize(static_cast<std::size_t>(o.limit));
  }
  return {std::move(images.values), std::move(labels.values)};
}

/// The training images in an order that seed and epoch decide, batch after batch; what is left over
/// at the end of an epoch is not used in it.
class Batches {
 public:
  Batches(const Images& images, const Options& o)
      : images_(images), o_(o), order_(images.count()) {}

  std::int64_t count() const { return images_.count() / o_.batch; }

  void shuffle(int epoch) {
    std::seed_seq seeds{static_cast<std::uint32_t>(o_.seed),
                        static_cast<std::uint32_t>(o_.seed >> 32),
                        static_cast<std::uint32_t>(epoch)};
    generator_.seed(seeds);
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = i;
    for (std::size_t i = order_.size(); i > 1; --i)
      std::swap(order_[i - 1], order_[generator_() % i]);
  }

  /// Batch `index` into host tensors u8 [n, 1, 28, 28] and i64 [n].
  void fill(std::int64_t index, Tensor& x, Tensor& labels) {
    auto* to = x.mutable_data<std::uint8_t>();
    auto* label = labels.mutable_data<std::int64_t>();
    for (int i = 0; i < o_.batch; ++i, to += pixels) {
      const std::size_t image = order_[static_cast<std::size_t>(index * o_.batch + i)];
      const std::uint8_t* const from = &images_.pixels[image * pixels];
      label[i] = images_.labels[image];
      if (o_.augment)
        augment(from, to);
      else
        std::copy_n(from, pixels, to);
    }
  }

 private:
  /// Shifted by up to two pixels each way, black moving in, and mirrored half of the time.
  void augment(const std::uint8_t* from, std::uint8_t* to) {
    const std::uint64_t lot = generator_();
    const auto down = static_cast<std::int64_t>(lot % 5) - 2;
    const auto right = static_cast<std::int64_t>(lot / 5 % 5) - 2;
    const bool mirror = lot >> 63;
    std::fill_n(to, pixels, std::uint8_t{0});
    const std::int64_t begin = std::max<std::int64_t>(0, right);
    const std::int64_t end = std::min(side, side + right);
    for (std::int64_t y = std::max<std::int64_t>(0, down); y < std::min(side, side + down); ++y) {
      const std::uint8_t* const row = from + (y - down) * side - right;
      std::copy(row + begin, row + end, to + y * side + begin);
      if (mirror) std::reverse(to + y * side, to + (y + 1) * side);
    }
  }

  const Images& images_;
  const Options& o_;
  std::vector<std::size_t> order_;
  std::mt19937_64 generator_;
};

// --- network ------------------------------------------------------------------------------------

constexpr const char* network_text =
    "conv 1->32, 32->64 (3x3, batch norm, 2x2 max pool, ReLU); linear 3136->128 (ReLU), 128->10; "
    "dropout 0.25 before each linear";

/// Pooling before ReLU gives what ReLU before pooling gives, on a quarter of the elements.
void build(nn::Sequential& net, const Context& context, DType dtype, bool nhwc) {
  for (const auto& [in, out] : {std::pair{1, 32}, std::pair{32, 64}}) {
    const auto conv = net.emplace<nn::Conv2d>(context, nn::Conv2dOptions{.in_channels = in,
                                                                         .out_channels = out,
                                                                         .kernel = 3,
                                                                         .padding = 1,
                                                                         .bias = false,
                                                                         .dtype = dtype});
    if (nhwc) conv->weight.value() = conv->weight.value().contiguous_nhwc();
    net.emplace<nn::BatchNorm>(context, nn::BatchNormOptions{.channels = out});
    net.emplace<nn::MaxPool2d>(Pool2dParams{.kernel = 2});
    net.emplace<nn::ReLU>();
  }
  net.emplace<nn::Flatten>();
  net.emplace<nn::Dropout>(0.25);
  net.emplace<nn::Linear>(context, nn::LinearOptions{.in_features = 64 * (side / 4) * (side / 4),
                                                     .out_features = 128,
                                                     .activation = Activation::relu,
                                                     .dtype = dtype});
  net.emplace<nn::Dropout>(0.25);
  net.emplace<nn::Linear>(
      context, nn::LinearOptions{.in_features = 128, .out_features = classes, .dtype = dtype});
}

struct Epoch {
  int epoch = 0;
  double train_loss = 0, test_loss = 0, test_accuracy = 0;
  double seconds = 0;  // of training
  double seconds_with_evaluation = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Epoch, epoch, train_loss, test_loss, test_accuracy, seconds,
                                   seconds_with_evaluation)

/// What decides the work that a run does: a peer is compared under the same.
nlohmann::json settings(const Options& o) {
  return {{"--epochs", o.epochs}, {"--batch", o.batch},    {"--lr", o.learning_rate},
          {"--dtype", o.dtype},   {"--math", o.math},      {"--seed", o.seed},
          {"--limit", o.limit},   {"--augment", o.augment}};
}

/// What decides a run's numbers to the last bit: a checkpoint is continued under the same.
nlohmann::json bit_settings(const Options& o) {
  nlohmann::json all = settings(o);
  all["--layout"] = o.layout;
  return all;
}

/// Throws UsageError where `file`, which was made under `theirs`, is for other settings.
void expect_settings(const nlohmann::json& ours, const nlohmann::json& theirs,
                     const std::string& file) {
  for (const auto& [option, value] : ours.items())
    if (theirs.at(option) != value)
      throw options::UsageError(fmt::format("{} {}: {} was made with {} {}", option, value.dump(),
                                            file, option, theirs.at(option).dump()));
}

class Training {
 public:
  Training(const Context& context, const Options& o, const Images& train, const Images& test)
      : o_(o),
        context_(context),
        host_(Device::cpu()),
        dtype_(options::parse_dtype(o.dtype)),
        batches_(train, o),
        schedule_{.learning_rate = o.learning_rate,
                  .steps = std::max<std::int64_t>(1, o.epochs * batches_.count())},
        host_x_(Tensor::empty(host_, {o.batch, 1, side, side}, DType::u8)),
        host_labels_(Tensor::empty(host_, {o.batch}, DType::i64)),
        x_(Tensor::empty(context, host_x_.shape(), DType::u8)),
        labels_(Tensor::empty(context, host_labels_.shape(), DType::i64)),
        loss_sum_(Tensor::full(context, {}, 0, DType::f64)),
        test_x_(Tensor::from(context, {test.count(), 1, side, side}, test.pixels)),
        test_labels_(
            Tensor::from(context, {test.count()},
                         std::vector<std::int64_t>(test.labels.begin(), test.labels.end()))),
        test_classes_(test.labels),
        scores_(Tensor::empty(context, {test.count(), classes})) {
    context_.seed(o.seed);
    build(net_, context, dtype_, o.layout == "nhwc");
    optimizer_.emplace(net_.parameters(),
                       nn::AdamWOptions{.learning_rate = o.learning_rate, .weight_decay = 0.01});
    if (dtype_ == DType::f16) scaler_.emplace(context);
  }

  std::int64_t steps_per_epoch() const { return batches_.count(); }
  const std::vector<Epoch>& epochs() const { return epochs_; }

  /// Everything that a step needs is chosen and loaded, on a network of its own.
  static void warm_up(const Context& context, const Options& o, const Images& train,
                      const Images& test) {
    Training trial(context, o, train, test);
    trial.load_batch(0);
    const auto step = [&trial] { trial.step(); };
    const bool tuned = trial.tuned();
    if (tuned && !o.resume.empty() && std::filesystem::exists(plans_of(o.resume)))
      load_plans(context, plans_of(o.resume));
    else if (tuned)
      tune(context, step);
    step();
    (void)trial.evaluate();
  }

  std::vector<nn::LayerSummary> summary() {
    net_.eval();
    return nn::summarize(net_, normalized(x_));
  }

  void capture() {
    net_.train();
    graph_ = Graph::capture(context_, [this] { step(); });
  }

  /// Trains for one epoch and evaluates; false if it was interrupted.
  bool run_epoch(report::Progress& progress) {
    const int number = static_cast<int>(epochs_.size());
    const report::Stopwatch watch;
    double shown_ms = 0;
    net_.train();
    loss_sum_.fill_(0);
    batches_.shuffle(number);
    for (std::int64_t i = 0; i < steps_per_epoch(); ++i) {
      if (report::interrupted()) return false;
      load_batch(i);
      optimizer_->set_learning_rate(schedule_(number * steps_per_epoch() + i));
      if (graph_.defined())
        graph_.replay();
      else
        step();
      if (progress.visible() && watch.milliseconds() - shown_ms > 200) {
        shown_ms = watch.milliseconds();
        progress.show(progress_line(i + 1, shown_ms));
      }
    }
    const double loss = loss_sum_.item() / static_cast<double>(steps_per_epoch());
    Epoch epoch{.epoch = number + 1, .train_loss = loss, .seconds = watch.milliseconds() * 1e-3};
    std::tie(epoch.test_loss, epoch.test_accuracy) = evaluate();
    epoch.seconds_with_evaluation = watch.milliseconds() * 1e-3;
    if (!std::isfinite(epoch.train_loss) || !std::isfinite(epoch.test_loss))
      throw std::runtime_error(
          fmt::format("epoch {}: the loss is {:.3g} in training and {:.3g} in the test; a smaller "
                      "--lr may help",
                      epoch.epoch, epoch.train_loss, epoch.test_loss));
    epochs_.push_back(epoch);
    return true;
  }

  void save(const std::string& path) const {
    FileMetadata metadata{{"epochs", nlohmann::json(epochs_).dump()},
                          {"settings", bit_settings(o_).dump()},
                          {"random_position", std::to_string(context_.random_position())}};
    if (scaler_)
      for (const NamedTensor& state : scaler_->state())
        metadata["loss_scaler." + state.name] = fmt::format("{:a}", state.tensor.item());
    nn::save_checkpoint(net_, *optimizer_, path, metadata);
    if (tuned())  // other implementations would give other bits after resume()
      save_plans(context_, plans_of(path));
    else
      std::filesystem::remove(plans_of(path));
  }

  /// Goes on where save() was called, bit for bit the same on the same device.
  void resume(const std::string& path) {
    try {
      // Looked at first: a network of other types would not fit, and the reason is the option.
      const FileMetadata metadata = SafetensorsFile(path).metadata();
      expect_settings(bit_settings(o_), nlohmann::json::parse(metadata.at("settings")), path);
      nn::load_checkpoint(net_, *optimizer_, path);
      epochs_ = nlohmann::json::parse(metadata.at("epochs")).get<std::vector<Epoch>>();
      context_.seed(o_.seed, std::stoull(metadata.at("random_position")));
      if (!scaler_) return;
      std::vector<NamedTensor> state = scaler_->state();
      for (NamedTensor& entry : state)
        entry.tensor = Tensor::full(host_, {}, std::stod(metadata.at("loss_scaler." + entry.name)),
                                    DType::f64);
      scaler_->load_state(state);
    } catch (const std::logic_error&) {  // of at() and of numbers
      throw FileError(fmt::format("--resume {}: was not written by this program", path));
    } catch (const nlohmann::json::exception&) {
      throw FileError(fmt::format("--resume {}: was not written by this program", path));
    }
  }

  void profile() {
    constexpr int steps = 5;
    const ProfileWindow window;
    for (int i = 0; i < steps; ++i) {
      const ProfileRange range("step");
      load_batch(i % steps_per_epoch());
      step();
    }
    context_.synchronize();
    fmt::print("\nran {} profiled steps, eagerly; no times are taken under a profiler.\n", steps);
  }

 private:
  static std::string plans_of(const std::string& checkpoint) { return checkpoint + ".plans"; }
  bool tuned() const { return o_.tune.value_or(context_.device().is_cuda()); }

  Tensor normalized(const Tensor& x) const {
    const Tensor scaled =
        affine(x.to(dtype_), 1 / (255 * image_stddev), -image_mean / image_stddev);
    return o_.layout == "nhwc" ? scaled.contiguous_nhwc() : scaled;
  }

  void load_batch(std::int64_t index) {
    batches_.fill(index, host_x_, host_labels_);
    x_.copy_(host_x_);
    labels_.copy_(host_labels_);
  }

  void step() {
    optimizer_->zero_grad();
    Tape tape;
    const Var loss = cross_entropy(net_(tape.constant(normalized(x_))), labels_);
    if (scaler_) {
      tape.backward(scaler_->scale(loss));
      scaler_->step(*optimizer_);
    } else {
      tape.backward(loss);
      optimizer_->step();
    }
    loss_sum_.add_(loss.value().to(DType::f64));
  }

  /// Mean loss and share of right answers on the test images.
  std::pair<double, double> evaluate() {
    net_.eval();
    const std::int64_t count = test_x_.size(0);
    for (std::int64_t begin = 0; begin < count; begin += o_.batch) {
      const std::int64_t end = std::min<std::int64_t>(begin + o_.batch, count);
      scores_.slice(0, begin, end).copy_(net_(normalized(test_x_.slice(0, begin, end))).value());
    }
    const double loss = cross_entropy(scores_, test_labels_).value().item();
    const std::vector<float> scores = scores_.to_vector<float>();
    std::int64_t right = 0;
    for (std::size_t i = 0; i < test_classes_.size(); ++i) {
      const float* const row = &scores[i * classes];
      right += std::max_element(row, row + classes) - row == test_classes_[i];
    }
    return {loss, static_cast<double>(right) / static_cast<double>(count)};
  }

  std::string progress_line(std::int64_t done, double milliseconds) const {
    constexpr std::size_t width = 20;
    const std::size_t filled =
        static_cast<std::size_t>(done) * width / static_cast<std::size_t>(steps_per_epoch());
    return fmt::format("epoch {}/{}  [{}{}]  loss {:.4f}{}  {:.0f} images/s", epochs_.size() + 1,
                       o_.epochs, std::string(filled, '#'), std::string(width - filled, '-'),
                       loss_sum_.item() / static_cast<double>(done),
                       epochs_.empty()
                           ? ""
                           : fmt::format("  accuracy {:.2f} %", 100 * epochs_.back().test_accuracy),
                       static_cast<double>(done * o_.batch) / milliseconds * 1e3);
  }

  const Options& o_;
  Context context_, host_;
  DType dtype_;
  Batches batches_;
  nn::CosineSchedule schedule_;
  Tensor host_x_, host_labels_;  // where a batch is put together
  Tensor x_, labels_;            // what a step reads
  Tensor loss_sum_;              // f64 [], of the epoch's steps
  Tensor test_x_, test_labels_;
  std::vector<std::uint8_t> test_classes_;
  Tensor scores_;  // f32 [n, 10]
  nn::Sequential net_;
  std::optional<nn::AdamW> optimizer_;
  std::optional<nn::LossScaler> scaler_;
  Graph graph_;  // of step(), on a GPU
  std::vector<Epoch> epochs_;
};

// --- results ------------------------------------------------------------------------------------

double median_seconds(const nlohmann::json& epochs) {
  std::vector<double> seconds;
  for (const auto& epoch : epochs) seconds.push_back(epoch.at("seconds").get<double>());
  return report::summarize(seconds).median_ms;
}

/// Rows of bench/peers_fashion_mnist.py for the same work on the same kind of device.
nlohmann::json load_peers(const Options& o, Device device, int threads) {
  nlohmann::json rows = nlohmann::json::array();
  if (o.peer.empty()) return rows;
  std::ifstream file(o.peer);
  if (!file) throw FileError(fmt::format("--peer {}: cannot be read", o.peer));
  try {
    const nlohmann::json document = nlohmann::json::parse(file);
    expect_settings(settings(o), document.at("header").at("settings"), o.peer);
    for (const auto& row : document.at("rows")) {
      (void)median_seconds(row.at("epochs"));
      if (row.at("device") == to_string(device) &&
          (device.is_cuda() || row.at("threads") == threads))
        rows.push_back(row);
    }
  } catch (const nlohmann::json::exception& error) {
    throw FileError(fmt::format("--peer {}: {}", o.peer, error.what()));
  }
  if (rows.empty())
    throw options::UsageError(fmt::format("--peer {}: has no row for {}, {} CPU threads", o.peer,
                                          to_string(device), threads));
  return rows;
}

nlohmann::json to_json(const std::vector<nn::LayerSummary>& layers) {
  nlohmann::json rows;
  for (const nn::LayerSummary& layer : layers)
    rows.push_back({{"path", layer.path},
                    {"layer", layer.description},
                    {"output", zerone::to_string(layer.output)},
                    {"parameters", layer.parameters},
                    {"ran", layer.rows}});
  return rows;
}

void print_epoch(const Epoch& epoch, double images) {
  fmt::print("  {:>5}  {:>10.4f}  {:>9.4f}  {:>11.2f} %  {:>8}  {:>8.0f}\n", epoch.epoch,
             epoch.train_loss, epoch.test_loss, 100 * epoch.test_accuracy,
             report::number(epoch.seconds), images / epoch.seconds);
  std::fflush(stdout);
}

void run(const Options& o) {
  const bool cpu_takes_it = o.dtype == "f32" && (o.math == "fp32" || o.math == "strict");
  const Device device =
      options::choose_devices(o, cpu_takes_it,
                              o.dtype != "f32" ? "--dtype " + o.dtype : "--math " + o.math)
          .back();
  report::JsonFile json_file(o.json);
  const Images train = load_images(o, "train"), test = load_images(o, "t10k");
  if (train.count() < o.batch)
    throw options::UsageError(
        fmt::format("--batch {}: there are only {} training images", o.batch, train.count()));
  // Weights that change at every step have no zeros worth looking for.
  const Context context(device, {.math = options::parse_math(o.math),
                                 .zero_skip = ZeroSkip::off,
                                 .threads = o.threads,
                                 .seed = o.seed,
                                 .stream = nullptr});
  const int threads = Context(Device::cpu(), {.threads = o.threads, .stream = nullptr}).threads();
  const std::string math = o.dtype == "f32" ? o.math : "native";
  nlohmann::json peers = load_peers(o, device, threads);

  nlohmann::json header = report::machine({device}, threads);
  header.update({{"experiment", "fashion_mnist"},
                 {"network", network_text},
                 {"optimizer", "AdamW, weight decay 0.01, cosine schedule over all steps"},
                 {"settings", settings(o)},
                 {"batch", o.batch},
                 {"storage", o.dtype},
                 {"math", math},
                 {"layout", o.layout},
                 {"seed", o.seed},
                 {"train_images", train.count()},
                 {"test_images", test.count()}});
  fmt::print("zerone {}: training on Fashion-MNIST  ({})\n\n", version(),
             header["date"].get<std::string>());
  report::print_machine(header);
  fmt::print("  data     {} + {} images of {}\n", train.count(), test.count(), o.data);
  fmt::print("  training {} epochs, batches of {}, AdamW at {}, cosine schedule{}; seed {}\n",
             o.epochs, o.batch, o.learning_rate, o.augment ? ", shifted and mirrored" : "", o.seed);
  fmt::print("  storage  {}, math {}, layout {}; {}\n\n", o.dtype, math, o.layout,
             device.is_cuda() ? "steps are replays of one CUDA graph" : "eager steps");
  std::fflush(stdout);

  Training::warm_up(context, o, train, test);
  Training training(context, o, train, test);
  const std::vector<nn::LayerSummary> layers = training.summary();
  fmt::print("{}\n", nn::to_string(layers));
  if (!o.resume.empty()) training.resume(o.resume);
  if (o.profile) return training.profile();
  if (device.is_cuda()) training.capture();

  const auto images = static_cast<double>(training.steps_per_epoch() * o.batch);
  fmt::print("  epoch  train loss  test loss  test accuracy   seconds  images/s\n");
  for (const Epoch& epoch : training.epochs()) print_epoch(epoch, images);
  report::Progress progress(1);
  while (static_cast<int>(training.epochs().size()) < o.epochs && training.run_epoch(progress)) {
    progress.clear();
    print_epoch(training.epochs().back(), images);
    if (!o.checkpoint.empty()) training.save(o.checkpoint);
  }
  progress.clear();

  header["complete"] = static_cast<int>(training.epochs().size()) == o.epochs;
  nlohmann::json row = {{"library", "zerone"},
                        {"device", to_string(device)},
                        {"storage", o.dtype},
                        {"math", math},
                        {"mode", device.is_cuda() ? "graph" : "eager"},
                        {"epochs", training.epochs()}};
  if (!training.epochs().empty()) {
    double best = 0;
    for (const Epoch& epoch : training.epochs()) best = std::max(best, epoch.test_accuracy);
    const double seconds = median_seconds(row["epochs"]);
    row.update({{"best_accuracy", best}, {"median_seconds", seconds}});
    fmt::print("\n  best accuracy {:.2f} %; {} s an epoch (median), {:.0f} images/s\n", 100 * best,
               report::number(seconds), images / seconds);
    for (auto& peer : peers) {
      const double theirs = median_seconds(peer["epochs"]);
      peer.update({{"median_seconds", theirs}, {"ours_over_peer", seconds / theirs}});
      fmt::print("  {}: {} s an epoch; zerone takes {} of that\n",
                 peer["library"].get<std::string>(), report::number(theirs),
                 report::ratio(seconds, theirs));
    }
  }
  nlohmann::json rows = nlohmann::json::array({row});
  rows.insert(rows.end(), peers.begin(), peers.end());
  json_file.write({{"header", header}, {"summary", to_json(layers)}, {"rows", rows}});
  if (!o.json.empty()) fmt::print("\nResults: {}\n", o.json);
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app{
      "Trains a small convolution network on Fashion-MNIST and tests it after every epoch.\n"
      "On a GPU the whole training step is one CUDA graph.\n"};
  app.add_option("--device", o.device, "Where to train: auto takes the first GPU, else the CPU")
      ->check(CLI::IsMember({"auto", "cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--data", o.data,
                 "Folder of the four IDX files; the Debian package dataset-fashion-mnist has them")
      ->type_name("DIR")
      ->capture_default_str();
  app.add_option("--limit", o.limit, "Use the first N images of each set only; 0 takes all")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->type_name("N")
      ->capture_default_str();
  app.add_option("--epochs", o.epochs, "Times that each training image is seen")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--batch", o.batch, "Images a step")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  app.add_option("--lr", o.learning_rate, "Learning rate of the first step; it falls to 0")
      ->check(CLI::Range(1e-12, 1e3))
      ->capture_default_str();
  app.add_flag("--augment", o.augment, "Shift and mirror the training images at random");
  app.add_option("--math", o.math, "How f32 is multiplied; the CPU takes strict and fp32")
      ->check(CLI::IsMember(options::math_names))
      ->capture_default_str();
  app.add_option("--layout", o.layout, "Memory order of images, activations and their weights")
      ->check(CLI::IsMember({"nhwc", "nchw"}))
      ->capture_default_str();
  options::add_common(app, o);
  app.add_option("--checkpoint", o.checkpoint, "Write the training's state here after every epoch")
      ->type_name("FILE");
  app.add_option(
         "--resume", o.resume,
         "Go on from a checkpoint; on as many threads of the same device the results are the "
         "same to the last bit")
      ->type_name("FILE");
  app.add_option("--peer", o.peer,
                 "Compare with a file of bench/peers_fashion_mnist.py, measured alike")
      ->type_name("FILE");
  app.footer(
      "Exit status: 0; 1 if something failed; 2 for bad options; 130 after Ctrl-C, with the "
      "epochs\n"
      "that were complete by then.\n\n"
      "Example: fashion_mnist --epochs 10 --json fashion_mnist.json --checkpoint "
      "state.safetensors");
  return options::run_program(app, argc, argv, [&] { run(o); });
}
