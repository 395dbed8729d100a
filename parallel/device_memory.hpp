/// Where memory lies.
#pragma once

namespace tessera::parallel {

/// Whether the host must copy memory at this address.
bool is_device_memory(const void* data);

}  // namespace tessera::parallel
