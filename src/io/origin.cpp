#include "io/origin.hpp"

#include <algorithm>

#include "errors.hpp"

namespace tessera::io {

void write_origin(h5::Object& object, const Origin& origin) {
  const Launch& launch = origin.launch;
  object.set_attribute("version", origin.version);
  object.set_attribute("git_hash", origin.git_hash);
  object.set_attribute("build", origin.build);
  object.set_attribute("hosts", launch.hosts);
  object.set_attribute("devices", launch.devices);
  object.set_attribute("ranks", launch.ranks);
  object.set_attribute("host_count", launch.host_count);
  object.set_attribute("ranks_per_host", launch.ranks_per_host);
  object.set_attribute("gpu_count", launch.gpu_count);
  object.set_attribute("gpu_models", launch.gpu_models);
  object.set_attribute("ranks_of_gpu_models", launch.ranks_of_gpu_models);
  object.set_attribute("transport", origin.transport);
  object.set_attribute("command", origin.command);
  object.set_attribute("deck", origin.deck);
}

Launch read_launch(const h5::Object& object) {
  if (!object.has_attribute("host_count")) {
    throw Failure(Exit::files,
                  "{}: an older version wrote this, which did not store the numbers of ranks and hosts (attribute "
                  "host_count). Resume the run with this one, or run again.",
                  object.where());
  }
  const Launch launch{.hosts = object.text("hosts"),
                      .devices = object.text("devices"),
                      .ranks = object.integer("ranks"),
                      .host_count = object.integer("host_count"),
                      .ranks_per_host = object.integer("ranks_per_host"),
                      .gpu_count = object.integer("gpu_count"),
                      .gpu_models = object.texts("gpu_models")};
  if (std::min({launch.ranks, launch.host_count, launch.ranks_per_host}) >= 1) return launch;
  throw Failure(Exit::files,
                "{}: ranks, host_count and ranks_per_host are not all 1 or more. Give a file that this program wrote.",
                object.where());
}

}  // namespace tessera::io
