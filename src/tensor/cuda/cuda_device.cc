#include "tensor/cuda/cuda_device.h"

#include <algorithm>
#include <utility>

#include "tensor/cuda/cuda_check.h"

namespace tenon {
namespace {

constexpr int kMajor = 9;  // Hopper: the kernels are compiled for sm_90a only
constexpr int kMinor = 0;
constexpr size_t kMaxMarks = 16384;  // some forty steps of a model of 32 layers

void free_device(std::byte* data, size_t /*size*/) {
  (void)cudaFree(data);
}
void free_host(std::byte* data, size_t /*size*/) {
  (void)cudaFreeHost(data);
}

class CudaFence final : public Fence {
 public:
  explicit CudaFence(CudaDevice* device) : device_(device) {
    device_->note(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  ~CudaFence() override { (void)cudaEventDestroy(event_); }
  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  void record() override { device_->note(cudaEventRecord(event_, device_->stream()), "fence"); }
  Status wait() override {
    device_->note(cudaEventSynchronize(event_), "waiting for a fence");
    return device_->status();
  }

 private:
  CudaDevice* device_;
  cudaEvent_t event_ = nullptr;
};

class CudaTimer final : public StreamTimer {
 public:
  explicit CudaTimer(CudaDevice* device) : device_(device) {
    device_->note(cudaEventCreate(&begin_), "cudaEventCreate");
    device_->note(cudaEventCreate(&end_), "cudaEventCreate");
  }
  ~CudaTimer() override {
    (void)cudaEventDestroy(begin_);
    (void)cudaEventDestroy(end_);
  }
  CudaTimer(const CudaTimer&) = delete;
  CudaTimer& operator=(const CudaTimer&) = delete;

  void start() override { device_->note(cudaEventRecord(begin_, device_->stream()), "timer"); }
  void stop() override { device_->note(cudaEventRecord(end_, device_->stream()), "timer"); }
  double seconds() override {
    float milliseconds = 0;
    device_->note(cudaEventElapsedTime(&milliseconds, begin_, end_), "timer");
    return 1e-3 * milliseconds;
  }

 private:
  CudaDevice* device_;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
};

class CudaGraph final : public DeviceGraph {
 public:
  CudaGraph(CudaDevice* device, cudaGraphExec_t exec) : device_(device), exec_(exec) {}
  ~CudaGraph() override { (void)cudaGraphExecDestroy(exec_); }
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void launch() override {
    device_->note(cudaGraphLaunch(exec_, device_->stream()), "launching a graph");
  }

 private:
  CudaDevice* device_;
  cudaGraphExec_t exec_;
};

}  // namespace

Result<std::unique_ptr<CudaDevice>> CudaDevice::create(int index) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0) return unsupported("no NVIDIA driver was found on this machine");
    return unsupported("the NVIDIA driver supports CUDA {}.{}; this build needs {}.{} or later",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                       CUDART_VERSION % 1000 / 10);
  }
  if (error != cudaSuccess || count == 0) {
    return unsupported("no usable NVIDIA GPU: {}",
                       error == cudaSuccess ? "none is visible" : cudaGetErrorString(error));
  }
  if (index >= count) return unsupported("no GPU {}: there are {}", index, count);
  std::unique_ptr<CudaDevice> device(new CudaDevice());
  TENON_RETURN_IF_ERROR(device->open(index));
  return device;
}

Status CudaDevice::open(int index) {
  index_ = index;
  cudaDeviceProp properties{};
  TENON_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
  if (properties.major != kMajor || properties.minor != kMinor) {
    return unsupported("{} has compute capability {}.{}; this build has kernels for {}.{} (Hopper)",
                       properties.name, properties.major, properties.minor, kMajor, kMinor);
  }
  TENON_RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
  num_sms_ = properties.multiProcessorCount;
  max_shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  l2_bytes_ = properties.l2CacheSize;
  info_.name = properties.name;
  info_.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  info_.asynchronous = true;
  int memory_khz = 0;
  TENON_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&memory_khz, cudaDevAttrMemoryClockRate, index));
  // Two transfers a clock.
  info_.bandwidth_bytes_per_second = 2e3 * memory_khz * properties.memoryBusWidth / 8.0;
  int least = 0;
  int greatest = 0;
  TENON_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  TENON_RETURN_IF_CUDA_ERROR(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, least));
  // Short work that should slip in beside long kernels.
  TENON_RETURN_IF_CUDA_ERROR(
      cudaStreamCreateWithPriority(&side_stream_, cudaStreamNonBlocking, greatest));
  TENON_RETURN_IF_CUDA_ERROR(
      cudaStreamCreateWithPriority(&copy_stream_, cudaStreamNonBlocking, least));
  TENON_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&fork_, cudaEventDisableTiming));
  TENON_RETURN_IF_CUDA_ERROR(cudaEventCreateWithFlags(&join_, cudaEventDisableTiming));
  return ok_status();
}

CudaDevice::~CudaDevice() {
  if (stream_ != nullptr) (void)cudaStreamSynchronize(stream_);
  for (Mark& mark : marks_) (void)cudaEventDestroy(mark.event);
  if (fork_ != nullptr) (void)cudaEventDestroy(fork_);
  if (join_ != nullptr) (void)cudaEventDestroy(join_);
  for (cudaStream_t stream : {copy_stream_, side_stream_, stream_}) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
}

void CudaDevice::note(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess || !first_error_.ok()) return;
  first_error_ = cuda_status(error, what);
}

void CudaDevice::fork_side() {
  note(cudaEventRecord(fork_, stream_), "fork");
  note(cudaStreamWaitEvent(side_stream_, fork_, 0), "fork");
}

void CudaDevice::join_side() {
  note(cudaEventRecord(join_, side_stream_), "join");
  note(cudaStreamWaitEvent(stream_, join_, 0), "join");
}

Result<Buffer> CudaDevice::allocate(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* data = nullptr;
  const cudaError_t error = cudaMalloc(&data, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return resource_exhausted("{}: no memory for {} bytes; {} of {} are free", info_.name, bytes,
                              available_bytes(), info_.total_bytes);
  }
  TENON_RETURN_IF_ERROR(cuda_status(error, "cudaMalloc"));
  Buffer buffer(static_cast<std::byte*>(data), bytes, free_device);
  TENON_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(data, 0, bytes, stream_));
  return buffer;
}

Result<Buffer> CudaDevice::allocate_host(size_t bytes) {
  if (bytes == 0) return Buffer();
  void* data = nullptr;
  const cudaError_t error = cudaHostAlloc(&data, bytes, cudaHostAllocDefault);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    return resource_exhausted("no pinned host memory for {} bytes", bytes);
  }
  TENON_RETURN_IF_ERROR(cuda_status(error, "cudaHostAlloc"));
  std::fill_n(static_cast<std::byte*>(data), bytes, std::byte{0});
  return Buffer(static_cast<std::byte*>(data), bytes, free_host);
}

int64_t CudaDevice::available_bytes() const {
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) return 0;
  return static_cast<int64_t>(free);
}

void CudaDevice::upload(void* device, const void* host, size_t bytes) {
  if (bytes == 0) return;
  note(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream_), "upload");
}

void CudaDevice::download(void* host, const void* device, size_t bytes) {
  if (bytes == 0) return;
  note(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream_), "download");
}

void CudaDevice::write(void* device, const void* host, size_t bytes) {
  upload(device, host, bytes);
  note(cudaStreamSynchronize(stream_), "write");
}

void CudaDevice::read(void* host, const void* device, size_t bytes) {
  download(host, device, bytes);
  note(cudaStreamSynchronize(stream_), "read");
}

std::unique_ptr<Fence> CudaDevice::make_fence() {
  return std::make_unique<CudaFence>(this);
}

std::unique_ptr<StreamTimer> CudaDevice::make_timer() {
  return std::make_unique<CudaTimer>(this);
}

Status CudaDevice::synchronize() {
  note(cudaStreamSynchronize(stream_), "the device");
  return first_error_;
}

Status CudaDevice::begin_capture() {
  return cuda_status(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
                     "begin capture");
}

Result<std::unique_ptr<DeviceGraph>> CudaDevice::end_capture() {
  cudaGraph_t graph = nullptr;
  TENON_RETURN_IF_ERROR(cuda_status(cudaStreamEndCapture(stream_, &graph), "end capture"));
  TENON_RETURN_IF_ERROR(status());
  cudaGraphExec_t exec = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&exec, graph, 0);
  (void)cudaGraphDestroy(graph);
  TENON_RETURN_IF_ERROR(cuda_status(error, "instantiating a graph"));
  return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(this, exec));
}

void CudaDevice::enter(StepSection section) {
  if (!profiling_) return;
  if (num_marks_ == marks_.size()) fold_profile(true);
  Mark& mark = marks_[num_marks_++];
  mark.section = section;
  note(cudaEventRecord(mark.event, stream_), "profile");
}

void CudaDevice::start_profile() {
  if (marks_.empty()) {
    marks_.resize(kMaxMarks);
    for (Mark& mark : marks_) note(cudaEventCreate(&mark.event), "profile");
  }
  std::fill(std::begin(seconds_), std::end(seconds_), 0.0);
  num_marks_ = 0;
  profiling_ = true;
}

// Adds up the stretches whose end has passed; the mark at that end stays, as the next one's start.
void CudaDevice::fold_profile(bool wait) {
  if (num_marks_ == 0) return;
  if (wait) note(cudaEventSynchronize(marks_[num_marks_ - 1].event), "profile");
  size_t first = 0;
  while (first + 1 < num_marks_ && cudaEventQuery(marks_[first + 1].event) == cudaSuccess) {
    float milliseconds = 0;
    note(cudaEventElapsedTime(&milliseconds, marks_[first].event, marks_[first + 1].event),
         "profile");
    seconds_[static_cast<size_t>(marks_[first].section)] += 1e-3 * milliseconds;
    ++first;
  }
  std::rotate(marks_.begin(), marks_.begin() + static_cast<std::ptrdiff_t>(first),
              marks_.begin() + static_cast<std::ptrdiff_t>(num_marks_));
  num_marks_ -= first;
}

double CudaDevice::profile_seconds(StepSection section) {
  fold_profile(false);
  return seconds_[static_cast<size_t>(section)];
}

}  // namespace tenon
