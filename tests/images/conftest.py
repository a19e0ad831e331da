"""A large tar, created once."""

import pytest

from tests.images.samples import BAD, GOOD, packed, plain


@pytest.fixture(scope="session")
def thousand(tmp_path_factory):
    """A tar of 1,000 images in 4 class folders, 20 of them special."""
    small = [plain((i, 0, 0), (4, 4)) for i in range(256)]
    special = {**GOOD, **{name: data for name, (data, _) in BAD.items()}}
    assert len(special) == 20
    files = {f"photo/class {i % 4}/{i:04}.png": small[i % 256] for i in range(980)}
    files |= {f"photo/class {i % 4}/{name}": data for i, (name, data) in enumerate(special.items())}
    return packed(tmp_path_factory.mktemp("tar") / "thousand.tar", files)
