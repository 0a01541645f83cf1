// tenon bench probe: the ceilings of this machine.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/thread_pool.h"
#include "cli/commands.h"
#include "kernels/ceilings.h"
#include "tensor/device.h"

namespace tenon::cli {

int bench_probe_command(const ProbeOptions& options) {
  auto device = make_device(options.device);
  if (!device.ok()) return fail(device.status());
  ThreadPool pool(options.threads > 0 ? options.threads : default_num_threads());
  auto ceilings = measure_ceilings(**device, pool);
  if (!ceilings.ok()) return fail(ceilings.status());
  if (options.json) {
    nlohmann::ordered_json json = {{"device", (*device)->info().name}};
    if ((*device)->type() == DeviceType::kCpu) json["threads"] = pool.num_threads();
    json["read_bytes_per_second"] = ceilings->read_bytes_per_second;
    json["flops_name"] = ceilings->flops_name;
    json["flops_per_second"] = ceilings->flops_per_second;
    std::printf("%s\n", json.dump(2).c_str());
  } else {
    std::printf("%s, %d threads | read bandwidth %.1f GB/s | %s %.1f GFLOP/s\n",
                (*device)->info().name.c_str(), pool.num_threads(),
                ceilings->read_bytes_per_second * 1e-9, ceilings->flops_name.c_str(),
                ceilings->flops_per_second * 1e-9);
  }
  return 0;
}

}  // namespace tenon::cli
