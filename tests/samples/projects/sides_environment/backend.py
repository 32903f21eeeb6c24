import base64, hashlib, os, zipfile


def get_requires_for_build_wheel(config_settings=None):
    print("the backend speaks")
    return os.environ.get("WANTED", "").split()


def build_wheel(directory, config_settings=None, metadata_directory=None):
    print("the compiler speaks")
    if os.path.exists("broken"):
        raise RuntimeError("cannot compile")
    files = {
        "built_thing/__init__.py": open("built_thing/__init__.py").read(),
        "built_thing/generated.py": "MADE = True\n",
        "built_thing-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: built-thing\nVersion: 1.0\n",
        "built_thing-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files["built_thing-1.0.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    name = "built_thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return name
