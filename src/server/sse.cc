#include "server/sse.h"

namespace tenon {

std::string sse_event(const OrderedJson& data) {
  return "data: " + dump_json(data) + "\n\n";
}

HttpResponse sse_head() {
  HttpResponse head;
  head.content_type = "text/event-stream; charset=utf-8";
  // Proxies must pass events on as they come.
  head.headers = {{"Cache-Control", "no-cache"}, {"X-Accel-Buffering", "no"}};
  return head;
}

}  // namespace tenon
