#include "io/h5.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <hdf5_hl.h>

#include <algorithm>

#include "io/files.hpp"
#include "io/h5_calls.hpp"

namespace tessera::io::h5 {

using namespace detail;

namespace {

bool is_float(Type type) { return type == Type::float32 || type == Type::float64; }

}  // namespace

// --- handles --------------------------------------------------------------------------------------------------------

Handle& Handle::operator=(Handle&& other) noexcept {
  if (this != &other) {
    close();
    id_ = std::exchange(other.id_, -1);
    closer_ = other.closer_;
  }
  return *this;
}

Handle::~Handle() { close(); }

int Handle::close() {
  const Lock lock;
  return id_ >= 0 ? closer_(std::exchange(id_, -1)) : 0;
}

// --- datasets -------------------------------------------------------------------------------------------------------

Type Dataset::type() const {
  const Lock lock;
  const Handle stored(H5_CHECK(H5Dget_type(id()), where_, "reading the type"), H5Tclose);
  const std::size_t bytes = H5Tget_size(stored.id());
  switch (H5Tget_class(stored.id())) {
    case H5T_STRING: return Type::text;
    case H5T_FLOAT:
      if (bytes == 4) return Type::float32;
      if (bytes == 8) return Type::float64;
      break;
    case H5T_INTEGER:
      if (H5Tget_sign(stored.id()) == H5T_SGN_2) {
        if (bytes <= 4) return Type::int32;
        if (bytes == 8) return Type::int64;
      } else {
        if (bytes == 1) return Type::uint8;
        if (bytes == 2) return Type::uint16;
        if (bytes == 4) return Type::uint32;
        if (bytes == 8) return Type::uint64;
      }
      break;
    default: break;
  }
  throw Failure(
      Exit::files,
      "{}: neither numbers of a common type nor text. Write it as one of float32, float64, integers or UTF-8 strings.",
      where_);
}

Shape Dataset::shape() const {
  const Lock lock;
  const Handle space(H5_CHECK(H5Dget_space(id()), where_, "reading the shape"), H5Sclose);
  std::vector<hsize_t> extents(
      static_cast<std::size_t>(H5_CHECK(H5Sget_simple_extent_ndims(space.id()), where_, "reading the shape")));
  H5Sget_simple_extent_dims(space.id(), extents.data(), nullptr);
  std::int64_t entries = 1;
  for (const hsize_t extent : extents) {
    if (!__builtin_mul_overflow(entries, extent, &entries)) continue;
    throw Failure(Exit::files, "{}: its shape [{}] has too many entries. {}", where_, fmt::join(extents, ", "),
                  kDamaged);
  }
  return {extents.begin(), extents.end()};
}

/// Throws  Failure(Exit::files) if the file, opened for reading, is too small for its entries, however well compressed:
///         memory for what a header promises is allocated by this number.
std::int64_t Dataset::size() const {
  const Lock lock;
  const std::int64_t entries = product(shape());
  require_room(id(), entries, where_);
  return entries;
}

namespace {

/// A hyperslab without gaps.
struct Box {
  std::vector<hsize_t> start, count;
  hsize_t size = 1;

  void select(const Handle& space, const std::string& where) const {
    H5_CHECK(H5Sselect_hyperslab(space.id(), H5S_SELECT_SET, start.data(), nullptr, count.data(), nullptr), where,
             "selecting");
  }
};

/// Elements first .. first + count - 1 of an array, in row-major order, as at most 2 * rank - 1 boxes: in a matrix the
/// end of a row, whole rows, and the beginning of a row.
std::vector<Box> boxes_of(const Shape& shape, std::int64_t first, std::int64_t count) {
  std::vector<Box> boxes;
  for (const std::int64_t end = first + count; first < end;) {
    // the outermost axis along which a whole step, over all inner axes, fits at `first`
    std::int64_t step = product(shape);
    std::size_t axis = 0;
    for (; axis < shape.size(); ++axis) {
      step /= shape[axis];
      if (first % step == 0 && end - first >= step) break;
    }
    const std::int64_t at = first / step % shape[axis], steps = std::min(shape[axis] - at, (end - first) / step);
    Box box{std::vector<hsize_t>(shape.size(), 0), std::vector<hsize_t>(shape.begin(), shape.end())};
    box.start[axis] = static_cast<hsize_t>(at);
    box.count[axis] = static_cast<hsize_t>(steps);
    std::int64_t outer = first / step / shape[axis];
    for (std::size_t i = axis; i-- > 0; outer /= shape[i]) {
      box.start[i] = static_cast<hsize_t>(outer % shape[i]);
      box.count[i] = 1;
    }
    box.size = static_cast<hsize_t>(steps * step);
    boxes.push_back(std::move(box));
    first += steps * step;
  }
  return boxes;
}

void require_kind(const Dataset& dataset, Type wanted) {
  const Type stored = dataset.type();
  const std::string kind = stored == Type::text ? "text" : is_float(stored) ? "floats" : "integers";
  const std::string wanted_kind = is_float(wanted) ? "floats" : "integers";
  if (kind != wanted_kind) {
    throw Failure(Exit::files, "{}: holds {} where {} are expected. Write it as {}.", dataset.where(), kind,
                  wanted_kind, is_float(wanted) ? "float32" : "int32");
  }
}

/// Throws if the file has been shortened since it was opened, where HDF5 would silently read zeros.
void read_selected(const Dataset& dataset, Type type, hid_t space, hid_t selected, void* out) {
  const std::string& where = dataset.where();
  const Handle native = make_type(type, false), transfer = strict_transfer();
  H5_CHECK(H5Dread(dataset.id(), native.id(), space, selected, transfer.id(), out), where, "reading");
  const Handle file(H5_CHECK(H5Iget_file_id(dataset.id()), where, "finding the file"), H5Fclose);
  unsigned intent = 0;
  hsize_t bytes = 0;
  void* descriptor = nullptr;
  H5_CHECK(H5Fget_intent(file.id(), &intent), where, "finding the file");
  if ((intent & H5F_ACC_RDWR) != 0) return;  // our own, parts of which may still be unwritten
  H5_CHECK(H5Fget_filesize(file.id(), &bytes), where, "finding the file's size");
  H5_CHECK(H5Fget_vfd_handle(file.id(), H5P_DEFAULT, &descriptor), where, "finding the file");
  require_not_shortened(where, *static_cast<const int*>(descriptor), static_cast<std::int64_t>(bytes));
}

}  // namespace

void Dataset::read_as(Type type, void* out, std::int64_t count) const {
  const Lock lock;
  require_kind(*this, type);
  if (size() != count) {
    throw Failure(Exit::files, "{}: shape [{}] has {} entries where {} are expected. Give a file of the right shape.",
                  where_, fmt::join(shape(), ", "), size(), count);
  }
  if (count > 0) read_selected(*this, type, H5S_ALL, H5S_ALL, out);
}

void Dataset::read_range_as(Type type, void* out, std::int64_t first, std::int64_t count) const {
  const Lock lock;
  require_kind(*this, type);
  const Shape extents = shape();
  if (first < 0 || count < 0 || first > product(extents) - count) {
    throw Failure(Exit::files, "{}: shape [{}] has no entries {}..{}. Give a longer dataset.", where_,
                  fmt::join(extents, ", "), first, first + count - 1);
  }
  if (count == 0) return;
  if (extents.empty()) return read_as(type, out, count);
  const Handle from = make_space(extents);
  const std::size_t bytes = H5Tget_size(make_type(type, false).id());
  for (const Box& box : boxes_of(extents, first, count)) {
    box.select(from, where_);
    read_selected(*this, type, make_space({static_cast<std::int64_t>(box.size)}).id(), from.id(), out);
    out = static_cast<std::byte*>(out) + box.size * bytes;
  }
}

std::vector<std::string> Dataset::strings() const {
  const Lock lock;
  const auto count = static_cast<std::size_t>(size());
  const Handle stored(H5_CHECK(H5Dget_type(id()), where_, "reading the type"), H5Tclose);
  if (count == 0) return {};
  return read_strings(stored.id(), count, where_,
                      [&](hid_t type, void* out) { return H5Dread(id(), type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out); });
}

void Dataset::make_scale(const std::string& name) {
  const Lock lock;
  H5_CHECK(H5DSset_scale(id(), name.c_str()), where_, "making a dimension scale");
}

void Dataset::attach_scale(const Dataset& scale, int axis) {
  const Lock lock;
  H5_CHECK(H5DSattach_scale(id(), scale.id(), static_cast<unsigned>(axis)), where_, "attaching a dimension scale");
}

void Dataset::set_label(int axis, const std::string& name) {
  const Lock lock;
  H5_CHECK(H5DSset_label(id(), static_cast<unsigned>(axis), name.c_str()), where_, "naming an axis");
}

// --- groups ---------------------------------------------------------------------------------------------------------

bool Group::has(const std::string& path) const {
  const Lock lock;
  for (std::size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (part.empty() || part == "/") continue;
    if (H5Lexists(id(), part.c_str(), H5P_DEFAULT) <= 0) return false;
  }
  return true;
}

std::vector<std::string> Group::names() const {
  const Lock lock;
  H5G_info_t info;
  H5_CHECK(H5Gget_info(id(), &info), where_, "listing the group");
  std::vector<std::string> names;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto length = H5_CHECK(H5Lget_name_by_idx(id(), ".", H5_INDEX_NAME, H5_ITER_INC, i, nullptr, 0, H5P_DEFAULT),
                                 where_, "listing the group");
    std::string name(static_cast<std::size_t>(length), '\0');
    H5Lget_name_by_idx(id(), ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size() + 1, H5P_DEFAULT);
    names.push_back(std::move(name));
  }
  return names;
}

std::vector<std::string> Group::dataset_paths() const {
  const Lock lock;
  std::vector<std::string> links, paths;
  const auto add = [](hid_t, const char* name, const H5L_info_t*, void* all) {
    static_cast<std::vector<std::string>*>(all)->emplace_back(name);
    return herr_t{0};
  };
  H5_CHECK(H5Lvisit(id(), H5_INDEX_NAME, H5_ITER_INC, add, &links), where_, "listing the group");
  for (std::string& path : links) {
    const Handle member(H5_CHECK(H5Oopen(id(), path.c_str(), H5P_DEFAULT), where_, "opening a member of the group"),
                        H5Oclose);
    if (H5Iget_type(member.id()) == H5I_DATASET) paths.push_back(std::move(path));
  }
  return paths;
}

Group Group::group(const std::string& path) const {
  const Lock lock;
  const std::string where = fmt::format("{}/{}", where_, path);
  if (!has(path)) throw Failure(Exit::files, "{}: the group is missing. Give a file that has it.", where);
  return { Handle(H5_CHECK(H5Gopen2(id(), path.c_str(), H5P_DEFAULT), where, "opening the group"), H5Gclose), where };
}

Group Group::make_group(const std::string& path) {
  const Lock lock;
  if (has(path)) return group(path);
  const std::string where = fmt::format("{}/{}", where_, path);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose);
  H5Pset_create_intermediate_group(links.id(), 1);
  return {
    Handle(H5_CHECK(H5Gcreate2(id(), path.c_str(), links.id(), H5P_DEFAULT, H5P_DEFAULT), where, "making the group"),
           H5Gclose),
        where
  };
}

Dataset Group::dataset(const std::string& path) const {
  const Lock lock;
  const std::string where = fmt::format("{}/{}", where_, path);
  if (!has(path)) throw Failure(Exit::files, "{}: the dataset is missing. Give a file that has it.", where);
  return { Handle(H5_CHECK(H5Dopen2(id(), path.c_str(), H5P_DEFAULT), where, "opening the dataset"), H5Dclose), where };
}

namespace {

/// Written at a time, so that other threads wait only that long.
constexpr std::int64_t kPieceBytes = std::int64_t{32} << 20;

std::int64_t bytes_of(const Handle& type) {
  const Lock lock;
  return static_cast<std::int64_t>(H5Tget_size(type.id()));
}

}  // namespace

void Dataset::write_range_as(Type type, const void* values, std::int64_t first, std::int64_t count) {
  const Handle native = make_type(type, false);
  const std::int64_t piece = kPieceBytes / bytes_of(native), end = first + count;
  const Shape extents = shape();
  if (count == product(extents) && count <= piece) {
    const Lock lock;
    if (count > 0) H5_CHECK(H5Dwrite(id(), native.id(), H5S_ALL, H5S_ALL, H5P_DEFAULT, values), where_, "writing");
    return;
  }
  for (; first < end; first += piece) {
    const Lock lock;
    const Handle space = make_space(extents);
    for (const Box& box : boxes_of(extents, first, std::min(piece, end - first))) {
      box.select(space, where_);
      const Handle memory = make_space({static_cast<std::int64_t>(box.size)});
      H5_CHECK(H5Dwrite(id(), native.id(), memory.id(), space.id(), H5P_DEFAULT, values), where_, "writing");
      values = static_cast<const std::byte*>(values) + box.size * static_cast<hsize_t>(bytes_of(native));
    }
  }
}

Dataset Group::make_as(const std::string& path, Type type, const Shape& shape, const Meaning& meaning, Id creation) {
  const Lock lock;
  const std::string where = fmt::format("{}/{}", where_, path);
  const Handle links(H5Pcreate(H5P_LINK_CREATE), H5Pclose), stored = make_type(type, true), space = make_space(shape);
  H5Pset_create_intermediate_group(links.id(), 1);
  Dataset dataset(
      Handle(H5_CHECK(H5Dcreate2(id(), path.c_str(), stored.id(), space.id(), links.id(), creation, H5P_DEFAULT), where,
                      "making the dataset"),
             H5Dclose),
      where);
  dataset.set_attribute("units", meaning.units);
  dataset.set_attribute("description", meaning.description);
  return dataset;
}

Dataset Group::write_as(const std::string& path, Type type, const Shape& shape, const void* values, std::int64_t count,
                        const Meaning& meaning) {
  if (product(shape) != count)
    throw std::logic_error(fmt::format("{}/{}: {} values for shape [{}]", where_, path, count, fmt::join(shape, ", ")));
  Dataset dataset = make_as(path, type, shape, meaning, H5P_DEFAULT);
  dataset.write_range_as(type, values, 0, count);
  return dataset;
}

Dataset Group::write(const std::string& path, const std::vector<std::string>& column, const Meaning& meaning) {
  const Lock lock;
  return write_as(path, Type::text, {std::ssize(column)}, pointers_to(column).data(), std::ssize(column), meaning);
}

Dataset Group::write_virtual(const std::string& path, Type type, const Shape& shape, std::span<const Source> sources,
                             const Meaning& meaning) {
  const Lock lock;
  const std::string where = fmt::format("{}/{}", where_, path);
  const Handle creation(H5Pcreate(H5P_DATASET_CREATE), H5Pclose), space = make_space(shape);
  const auto map = [&](const Source& source, const Handle& from) {
    H5_CHECK(H5Pset_virtual(creation.id(), space.id(), source.file.c_str(), source.path.c_str(), from.id()), where,
             "making the virtual dataset");
  };
  for (const Source& source : sources) {
    if (source.count < 0) {
      H5_CHECK(H5Sselect_all(space.id()), where, "selecting");
      map(source, space);
      continue;
    }
    const Handle entries = make_space({source.count});
    Box part{{0}, {0}};
    for (const Box& box : boxes_of(shape, source.first, source.count)) {
      box.select(space, where);
      part.count.assign(1, box.size);
      part.select(entries, where);
      map(source, entries);
      part.start[0] += box.size;
    }
  }
  return make_as(path, type, shape, meaning, creation.id());
}

// --- files ----------------------------------------------------------------------------------------------------------

File::File(Handle file, std::filesystem::path path, bool is_writing)
    : Group(Handle(H5_CHECK(H5Gopen2(file.id(), "/", H5P_DEFAULT), path.string(), "opening the root group"), H5Gclose),
            path.string() + ":"),
      file_(std::move(file)),
      path_(std::move(path)),
      is_writing_(is_writing) {}

File File::create(const std::filesystem::path& path) {
  const Lock lock;
  start_library();
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fclose_degree(access.id(), H5F_CLOSE_STRONG);  // datasets still open do not keep the file from closing
  H5Pset_sieve_buf_size(access.id(), 0);                // no buffering: a full disk shows in the write that caused it
  Handle file(
      H5_CHECK(H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, access.id()), path.string(), "making the HDF5 file"),
      H5Fclose);
  return {std::move(file), path, true};
}

namespace {

Handle open_to_read(const std::filesystem::path& path, H5F_close_degree_t degree) {
  start_library();
  require_regular_file(path);
  const Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fclose_degree(access.id(), degree);
  H5Pset_fapl_sec2(access.id());  // whatever the environment selects: read_selected needs its descriptor
  const hid_t file = H5_CHECK(H5Fopen(path.c_str(), H5F_ACC_RDONLY, access.id()), path.string(), "opening as HDF5");
  return {file, H5Fclose};
}

}  // namespace

File File::open(const std::filesystem::path& path) {
  const Lock lock;
  return {open_to_read(path, H5F_CLOSE_STRONG), path, false};
}

File File::open_source(const std::filesystem::path& path) {
  const Lock lock;
  return {open_to_read(path, H5F_CLOSE_WEAK), path, false};
}

std::string File::format() const {
  if (!has("info")) return "";
  const Group info = group("info");
  std::string format = info.has_attribute("format") ? info.text("format") : "";
  std::replace(format.begin(), format.end(), '-', ' ');
  return format;
}

void File::close() {
  const Lock lock;
  if (!file_.is_open()) return;
  if (is_writing_) H5_CHECK(H5Fflush(file_.id(), H5F_SCOPE_LOCAL), path_.string(), "writing");
  handle_.close();
  H5_CHECK(file_.close(), path_.string(), "closing");
}

}  // namespace tessera::io::h5
