// The one list of attention backends. Listed by name because static-initialiser registration
// vanishes in static libraries.
#include "attention/backends/cpu/cpu_backend.h"
#include "attention/backends/reference/reference_backend.h"
#include "attention/registry.h"

namespace tenon {

void register_attention_backends(AttentionRegistry& registry) {
  registry.add("cpu", make_cpu_attention);
  registry.add("reference", make_reference_attention);
}

}  // namespace tenon
