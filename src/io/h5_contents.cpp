/// Checks that a dataset is complete: filters, chunks, the sources of a virtual one.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "errors.hpp"
#include "io/h5.hpp"
#include "io/h5_calls.hpp"

namespace tessera::io::h5 {

using detail::product;

namespace {

namespace fs = std::filesystem;

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

/// Where HDF5 finds the file `name`, which a virtual dataset of the file `own` names.
std::optional<fs::path> source_file(const fs::path& own, const fs::path& name) {
  std::vector<fs::path> candidates;
  if (const char* prefix = std::getenv("HDF5_VDS_PREFIX")) candidates.push_back(fs::path(prefix) / name);
  candidates.insert(candidates.end(), {name, own.parent_path() / name, own.parent_path() / name.filename()});
  std::error_code error;
  for (const fs::path& candidate : candidates) {
    if (fs::is_regular_file(candidate, error)) return candidate;
  }
  return std::nullopt;
}

template <class Get>
std::string text_from(const Get& get, const std::string& where) {
  const auto length = H5_CHECK(get(nullptr, std::size_t{0}), where, "reading the virtual dataset's sources");
  std::string text(static_cast<std::size_t>(length), '\0');
  get(text.data(), text.size() + 1);
  return text;
}

/// Virtual datasets, "FILE:/PATH", by whether all their sources are known to be there; those of which they are not yet
/// are wholes of the one that is looked at.
using Wholes = std::map<std::string, bool>;

void require_contents(const Dataset& dataset, Wholes& wholes);

void require_sources(const Dataset& dataset, hid_t creation, Wholes& wholes) {
  const std::string& where = dataset.where();
  const std::string again = "Bring the missing part back, or make the dataset again";
  const fs::path own =
      text_from([&](char* out, std::size_t room) { return H5Fget_name(dataset.id(), out, room); }, where);
  const std::string own_path =
      text_from([&](char* out, std::size_t room) { return H5Iget_name(dataset.id(), out, room); }, where);
  std::error_code error;
  const auto [self, is_new] = wholes.try_emplace(fs::canonical(own, error).string() + ":" + own_path, false);
  if (self->second) return;
  if (!is_new) refuse(where, "it is a part of itself", "Make the dataset again, of others");
  std::size_t sources = 0;
  H5_CHECK(H5Pget_virtual_count(creation, &sources), where, "reading the virtual dataset's sources");
  double covered = 0;  // entries; those of overlapping sources count twice
  for (std::size_t i = 0; i < sources; ++i) {
    const std::string name =
        text_from([&](char* out, std::size_t room) { return H5Pget_virtual_filename(creation, i, out, room); }, where);
    const std::string path =
        text_from([&](char* out, std::size_t room) { return H5Pget_virtual_dsetname(creation, i, out, room); }, where);
    const Handle space(H5_CHECK(H5Pget_virtual_vspace(creation, i), where, "reading the virtual dataset's sources"),
                       H5Sclose);
    covered += static_cast<double>(static_cast<hsize_t>(H5Sget_select_npoints(space.id())));  // unlimited: very many
    if (name.find('%') != std::string::npos) continue;                                        // a pattern of names
    const std::optional<fs::path> file = name == "." ? own : source_file(own, name);
    if (!file) refuse(where, fmt::format("a part of it lies in {}, which is missing", name), again);
    const File opened = File::open(*file);
    const std::string below = path.substr(std::min(path.size(), path.find_first_not_of('/')));
    if (!opened.has(below)) refuse(where, fmt::format("a part of it is {}:/{}, which is missing", name, below), again);
    require_contents(opened.dataset(below), wholes);
  }
  self->second = true;
  if (covered < static_cast<double>(dataset.size())) {
    refuse(where, fmt::format("its sources have {:.0f} of {} entries", covered, dataset.size()), again);
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

void require_contents(const Dataset& dataset, Wholes& wholes) {
  const std::string& where = dataset.where();
  if (dataset.size() == 0) return;
  const Handle creation(H5_CHECK(H5Dget_create_plist(dataset.id()), where, "reading the dataset's layout"), H5Pclose);
  require_filters(creation.id(), where);
  const H5D_layout_t layout = H5_CHECK(H5Pget_layout(creation.id()), where, "reading the dataset's layout");
  if (layout == H5D_VIRTUAL) return require_sources(dataset, creation.id(), wholes);
  if (layout == H5D_CHUNKED) return require_chunks(dataset, creation.id());
  H5D_space_status_t status = H5D_SPACE_STATUS_ALLOCATED;
  H5_CHECK(H5Dget_space_status(dataset.id(), &status), where, "reading the dataset's layout");
  if (status == H5D_SPACE_STATUS_NOT_ALLOCATED) {
    refuse(where, "it has never been written", "Write the dataset: what made it may have been stopped");
  }
}

}  // namespace

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
    names.push_back(text_from(
        [&](char* out, std::size_t room) { return H5Pget_virtual_filename(creation.id(), i, out, room); }, where_));
  }
  return names;
}

void Dataset::require_contents() const {
  const Lock lock;
  Wholes wholes;
  h5::require_contents(*this, wholes);
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
