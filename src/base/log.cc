#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>

#include "base/check.h"

namespace tenon {
namespace {

spdlog::level::level_enum to_spdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: return spdlog::level::err;
    case LogLevel::kOff: return spdlog::level::off;
  }
  return spdlog::level::info;
}

spdlog::logger& logger() {
  static const std::shared_ptr<spdlog::logger> instance = [] {
    auto sink = std::make_shared<spdlog::sinks::stderr_color_sink_mt>();
    auto created = std::make_shared<spdlog::logger>("tenon", std::move(sink));
    created->set_pattern("%H:%M:%S.%e %^%l%$ %v");
    created->flush_on(spdlog::level::warn);
    return created;
  }();
  return *instance;
}

}  // namespace

void set_log_level(LogLevel level) {
  logger().set_level(to_spdlog(level));
}

bool log_enabled(LogLevel level) {
  return logger().should_log(to_spdlog(level));
}

void log_message(LogLevel level, std::string_view message) {
  logger().log(to_spdlog(level), spdlog::string_view_t(message.data(), message.size()));
}

void check_failed(const char* file, int line, const char* expression, const std::string& detail) {
  log_message(LogLevel::kError,
              fmt::format("{}:{}: check failed: {} {}", file, line, expression, detail));
  std::abort();
}

}  // namespace tenon
