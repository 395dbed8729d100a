/// Checks that a dataset is complete: filters, chunks. Lists the sources of a virtual one.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "errors.hpp"
#include "io/h5.hpp"
#include "io/h5_calls.hpp"

namespace tessera::io::h5 {

using detail::product;

namespace {

[[noreturn]] void refuse(const std::string& where, const std::string& what, const std::string& action) {
  throw Failure(Exit::files, "{}: {}. {}.", where, what, action);
}

void require_filters(hid_t creation, const std::string& where) {
  const int filters = H5_CHECK(H5Pget_nfilters(creation), where, "reading the filters");
  for (int i = 0; i < filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t values = 0;
    char name[64] = "";
    const H5Z_filter_t filter =
        H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &values, nullptr, sizeof name, name, &config);
    H5_CHECK(filter, where, "reading the filters");
    if (H5Zfilter_avail(filter) > 0) continue;
    refuse(
        where, fmt::format("it is compressed by filter {} ({}), which this HDF5 lacks", static_cast<int>(filter), name),
        "Write it again without a filter or with gzip (in h5py compression=\"gzip\"), or set HDF5_PLUGIN_PATH to the "
        "folder of the filter's plugin");
  }
}

void require_chunks(const Dataset& dataset, hid_t creation) {
#if H5_VERSION_GE(1, 10, 5)
  const std::string& where = dataset.where();
  const Shape extents = dataset.shape();
  std::vector<hsize_t> chunk(extents.size());
  const int axes =
      H5_CHECK(H5Pget_chunk(creation, static_cast<int>(chunk.size()), chunk.data()), where, "reading the chunks");
  if (axes != std::ssize(chunk) || std::find(chunk.begin(), chunk.end(), 0) != chunk.end()) {
    throw Failure(Exit::files, "{}: its chunks do not have its shape. {}", where, detail::kDamaged);
  }
  hsize_t wanted = 1, written = 0;
  for (std::size_t i = 0; i < chunk.size(); ++i) {
    wanted *= (static_cast<hsize_t>(extents[i]) + chunk[i] - 1) / chunk[i];
  }
  const Handle space(H5_CHECK(H5Dget_space(dataset.id()), where, "reading the chunks"), H5Sclose);
  H5_CHECK(H5Dget_num_chunks(dataset.id(), space.id(), &written), where, "reading the chunks");
  if (written < wanted) {
    refuse(where, fmt::format("{} of its {} chunks have never been written", wanted - written, wanted),
           "Write the whole dataset: what made it may have been stopped");
  }
#endif
}

}  // namespace

void Dataset::require_contents() const {
  const Lock lock;
  if (size() == 0) return;
  const Handle creation(H5_CHECK(H5Dget_create_plist(id()), where_, "reading the dataset's layout"), H5Pclose);
  require_filters(creation.id(), where_);
  const H5D_layout_t layout = H5_CHECK(H5Pget_layout(creation.id()), where_, "reading the dataset's layout");
  if (layout == H5D_VIRTUAL || H5Pget_external_count(creation.id()) > 0) {
    refuse(where_, "its entries lie in other files, and what is missing there HDF5 reads as zeros",
           "Name those files instead (data.path takes a pattern), or copy the entries: in h5py new[\"x\"] = "
           "old[\"x\"][:]");
  }
  if (layout == H5D_CHUNKED) return require_chunks(*this, creation.id());
  H5D_space_status_t status = H5D_SPACE_STATUS_ALLOCATED;
  H5_CHECK(H5Dget_space_status(id(), &status), where_, "reading the dataset's layout");
  if (status == H5D_SPACE_STATUS_NOT_ALLOCATED) {
    refuse(where_, "it has never been written", "Write the dataset: what made it may have been stopped");
  }
}

std::vector<std::string> Dataset::sources_of(std::int64_t first, std::int64_t count) const {
  const Lock lock;
  const Handle creation(H5_CHECK(H5Dget_create_plist(id()), where_, "reading the dataset's layout"), H5Pclose);
  if (H5_CHECK(H5Pget_layout(creation.id()), where_, "reading the dataset's layout") != H5D_VIRTUAL) return {};
  const Shape extents = shape();
  const auto position = [&](const std::vector<hsize_t>& entry) {  // in row-major order
    std::int64_t at = 0;
    for (std::size_t axis = 0; axis < extents.size(); ++axis) {
      at = at * extents[axis] + static_cast<std::int64_t>(entry[axis]);
    }
    return at;
  };
  std::size_t sources = 0;
  H5_CHECK(H5Pget_virtual_count(creation.id(), &sources), where_, "reading the virtual dataset's sources");
  std::vector<std::string> names;
  for (std::size_t i = 0; i < sources; ++i) {
    const Handle space(
        H5_CHECK(H5Pget_virtual_vspace(creation.id(), i), where_, "reading the virtual dataset's sources"), H5Sclose);
    std::vector<hsize_t> begin(extents.size(), 0), last(extents.size(), 0);
    H5_CHECK(H5Sget_select_bounds(space.id(), begin.data(), last.data()), where_,
             "reading the virtual dataset's sources");
    if (position(begin) >= first + count || position(last) < first) continue;
    const auto length = H5_CHECK(H5Pget_virtual_filename(creation.id(), i, nullptr, 0), where_,
                                 "reading the virtual dataset's sources");
    names.emplace_back(static_cast<std::size_t>(length), '\0');
    H5Pget_virtual_filename(creation.id(), i, names.back().data(), names.back().size() + 1);
  }
  return names;
}

}  // namespace tessera::io::h5

namespace tessera::io::h5::detail {

void require_room(hid_t dataset, std::int64_t entries, const std::string& where) {
  constexpr double kRatio = 1100, kSmall = 1 << 26;  // gzip's best is 1 to 1032; below 64 MiB nothing is lost
  const Handle stored(H5_CHECK(H5Dget_type(dataset), where, "reading the type"), H5Tclose);
  const double bytes = static_cast<double>(entries) * static_cast<double>(H5Tget_size(stored.id()));
  if (bytes <= kSmall) return;
  const Handle creation(H5_CHECK(H5Dget_create_plist(dataset), where, "reading the dataset's layout"), H5Pclose);
  const H5D_layout_t layout = H5_CHECK(H5Pget_layout(creation.id()), where, "reading the dataset's layout");
  if (layout == H5D_VIRTUAL || H5Pget_external_count(creation.id()) > 0) return;
  const Handle file(H5_CHECK(H5Iget_file_id(dataset), where, "finding the file"), H5Fclose);
  unsigned intent = 0;
  hsize_t room = 0;
  H5_CHECK(H5Fget_intent(file.id(), &intent), where, "finding the file");
  H5_CHECK(H5Fget_filesize(file.id(), &room), where, "finding the file's size");
  if ((intent & H5F_ACC_RDWR) != 0 || bytes <= kSmall + kRatio * static_cast<double>(room)) return;
  throw Failure(Exit::files, "{}: it has {} entries, more than a file of {} bytes can hold. {}", where, entries, room,
                kDamaged);
}

}  // namespace tessera::io::h5::detail
