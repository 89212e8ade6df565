"""What pyproject.toml cannot say: a wheel holds xce-cage, compiled, and is for machines like this one."""

import subprocess
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py


class WithCage(build_py):
    """Compiles the program in C beside the module that starts it."""

    def run(self) -> None:
        """Build as ever, and the cage."""
        super().run()
        source = Path(self.build_lib, "xce/reporters/cage.c")
        program = str(source.with_name("xce-cage"))
        subprocess.run(["cc", "-std=c11", "-O2", "-s", "-o", program, str(source)], check=True)


class OfThisMachine(Distribution):
    """One that is not for all machines."""

    def has_ext_modules(self) -> bool:
        """Whether something of it is compiled."""
        return True


class ForAnyPython(bdist_wheel):
    """What is compiled has nothing to do with Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """Names of Python, ABI and machine."""
        return "py3", "none", super().get_tag()[2]


setup(distclass=OfThisMachine, cmdclass={"build_py": WithCage, "bdist_wheel": ForAnyPython})
