/// Files whose headers promise what cannot be: each is refused, by name, before anything is allocated for it.
#include <gmock/gmock.h>

#include <cstdlib>

#include "io/h5.hpp"
#include "tests/unit/io/scratch.hpp"

namespace tessera::test {
namespace {

namespace h5 = io::h5;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// A file of h5py's, made by `python`, to which it is known as `file`.
h5::File made_by(const ScratchFolder& folder, const std::string& python) {
  write_bytes(folder / "write.py", "import sys, h5py, numpy\nwith h5py.File(sys.argv[1], 'w') as file:\n" + python);
  const std::string command =
      "'" TESSERA_PYTHON "' '" + (folder / "write.py").string() + "' '" + (folder / "a.h5").string() + "'";
  EXPECT_EQ(std::system(command.c_str()), 0);
  return h5::File::open(folder / "a.h5");
}

TEST(H5Damage, more_entries_than_a_number_can_count) {
  const ScratchFolder folder;
  const auto file = made_by(folder, "    file.create_dataset('x', (2**40, 2**40), 'u1', chunks=(16, 16))\n");
  EXPECT_THAT(failure_of([&] { file.dataset("x").size(); }), AllOf(HasSubstr("a.h5:/x"), HasSubstr("h5dump -H")));
}

TEST(H5Damage, more_entries_than_the_file_can_hold) {
  const ScratchFolder folder;
  const auto file = made_by(folder,
                            "    file.create_dataset('x', (2**50,), 'u1', chunks=(2**30,))\n"
                            "    file.create_dataset('words', (2**50,), 'S2', chunks=(2**28,))\n");
  EXPECT_THAT(failure_of([&] { file.dataset("x").values<std::uint8_t>(); }),
              AllOf(HasSubstr("a.h5:/x"), HasSubstr("can hold")));
  EXPECT_THAT(failure_of([&] { file.dataset("words").strings(); }), HasSubstr("a.h5:/words"));
}

TEST(H5Damage, a_group_inside_itself_is_listed_once) {
  const ScratchFolder folder;
  const auto file = made_by(folder, "    file['a/x'] = [1]\n    file['a/again'] = file['a']\n");
  EXPECT_THAT(file.dataset_paths(), ElementsAre("a/x"));
}

TEST(H5Damage, datasets_whose_entries_lie_in_other_files) {
  const ScratchFolder folder;
  const auto file = made_by(folder,
                            "    layout = h5py.VirtualLayout((4,), 'u2')\n"
                            "    layout[:] = h5py.VirtualSource('.', 'virtual', (4,))\n"
                            "    file.create_virtual_dataset('virtual', layout)\n"
                            "    file.create_dataset('external', (4,), 'u2', external=[('raw', 0, 8)])\n");
  for (const char* name : {"virtual", "external"}) {
    EXPECT_THAT(failure_of([&] { file.dataset(name).require_contents(); }), HasSubstr("lie in other files")) << name;
  }
}

}  // namespace
}  // namespace tessera::test
