// From a configuration to the parts of an engine: device, threads, operators, model, attention
// backend, KV memory, sampler.
#pragma once

#include <memory>

#include "attention/backend.h"
#include "base/status.h"
#include "base/thread_pool.h"
#include "kernels/ops.h"
#include "kv_cache/pool.h"
#include "models/model.h"
#include "sampling/batch_sampler.h"
#include "scheduler/scheduler.h"
#include "tenon/engine.h"
#include "tensor/device.h"

namespace tenon {

// Destroyed in reverse order: a model's attention impls borrow from the backend and the pool.
struct EngineParts {
  std::unique_ptr<Device> device;
  std::unique_ptr<ThreadPool> threads;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<KvPool> kv;       // device blocks
  std::unique_ptr<KvPool> kv_host;  // swapped-out blocks; null without swap space
  std::unique_ptr<AttentionBackend> attention;
  std::unique_ptr<Model> model;
  std::unique_ptr<BatchSampler> sampler;
  SchedulerConfig scheduler;
  int32_t logits_slice = 0;  // rows of logits computed at once; more are taken in slices, so that a
                             // large vocabulary costs bounded memory
  bool cascade = false;      // the backend may want to know which rows share prefixes
  bool graphs = false;       // decode steps may run as captured graphs
  bool profile = false;
  ModelInfo info;
};

Result<EngineParts> build_engine(const EngineConfig& config, const LoadProgress& progress);

}  // namespace tenon
