//! The files of a new handler, by language, and the WIT package.

use clap::ValueEnum;

/// A language with a template.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lowercase")]
pub(crate) enum Language {
    /// With `cargo` and the target `wasm32-wasip2`.
    Rust,
    /// With `componentize-py`, from PyPI.
    Python,
    /// With `componentize-js`, from npm.
    JavaScript,
    /// With `ziglang` and `wasm-tools`, from PyPI.
    C,
    /// With Go 1.25, and `wasm-tools` from PyPI.
    Go,
}

/// A file's path and its text.
pub(crate) type File = (&'static str, &'static str);

impl Language {
    /// Returns the files of a language. `@NAME@` becomes the name of the handler, `@FILE@` that of the component, `@AKRI@`
    /// this program.
    pub(crate) fn files(self) -> impl Iterator<Item = &'static File> {
        let (own, object): (&[File], _) = match self {
            Self::Rust => (&RUST, &OBJECT),
            Self::Python => (&PYTHON, &LARGE_OBJECT),
            Self::JavaScript => (&JAVASCRIPT, &LARGE_OBJECT),
            Self::C => (&C, &OBJECT),
            Self::Go => (&GO, &OBJECT),
        };
        own.iter().chain([object])
    }

    /// Returns a file that is not text, if the language has one: the adapter that makes a component for WASI 0.2 of a module
    /// for WASI 0.1.
    pub(crate) fn adapter(self) -> Option<(&'static str, &'static [u8])> {
        let adapter = || (ADAPTER, wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER);
        (self == Self::Go).then(adapter)
    }
}

const OBJECT: File = ("handler.yaml", include_str!("common/handler.yaml.txt"));
/// The object of a component that holds the interpreter of its language.
const LARGE_OBJECT: File = (
    "handler.yaml",
    concat!(
        include_str!("common/handler.yaml.txt"),
        "  limits:\n    # The component holds an interpreter, which takes more to compile than the default allows.\n    \
         compile: {memory: 1Gi, time: 3m}\n"
    ),
);
const CONFIGURATION: File = ("configuration.yaml", include_str!("common/configuration.yaml.txt"));
const CASSETTE: File = ("cassettes/example.yaml", include_str!("common/example.yaml.txt"));

const RUST: [File; 16] = [
    CONFIGURATION,
    CASSETTE,
    ("Cargo.toml", include_str!("rust/Cargo.toml.txt")),
    ("Makefile", include_str!("rust/Makefile.txt")),
    (".gitignore", include_str!("rust/gitignore.txt")),
    ("README.md", include_str!("rust/README.md.txt")),
    ("src/component.rs", include_str!("rust/component.rs.txt")),
    ("src/devices.rs", include_str!("rust/devices.rs.txt")),
    ("src/lib.rs", include_str!("rust/lib.rs.txt")),
    ("sdk/akri-handler/Cargo.toml", include_str!("../../../../handlers/sdk/Cargo.toml")),
    ("sdk/akri-handler/src/details.rs", include_str!("../../../../handlers/sdk/src/details.rs")),
    ("sdk/akri-handler/src/device.rs", include_str!("../../../../handlers/sdk/src/device.rs")),
    ("sdk/akri-handler/src/filter.rs", include_str!("../../../../handlers/sdk/src/filter.rs")),
    ("sdk/akri-handler/src/handler.rs", include_str!("../../../../handlers/sdk/src/handler.rs")),
    ("sdk/akri-handler/src/host.rs", include_str!("../../../../handlers/sdk/src/host.rs")),
    ("sdk/akri-handler/src/lib.rs", include_str!("../../../../handlers/sdk/src/lib.rs")),
];

const PYTHON: [File; 9] = [
    CONFIGURATION,
    CASSETTE,
    ("Makefile", include_str!("python/Makefile.txt")),
    (".gitignore", include_str!("python/gitignore.txt")),
    ("README.md", include_str!("python/README.md.txt")),
    ("app.py", include_str!("python/app.py.txt")),
    ("devices.py", include_str!("python/devices.py.txt")),
    ("requirements.txt", include_str!("python/requirements.txt.txt")),
    ("test_devices.py", include_str!("python/test_devices.py.txt")),
];

const JAVASCRIPT: [File; 9] = [
    CONFIGURATION,
    CASSETTE,
    ("Makefile", include_str!("javascript/Makefile.txt")),
    (".gitignore", include_str!("javascript/gitignore.txt")),
    ("README.md", include_str!("javascript/README.md.txt")),
    ("devices.js", include_str!("javascript/devices.js.txt")),
    ("devices.test.js", include_str!("javascript/devices.test.js.txt")),
    ("handler.js", include_str!("javascript/handler.js.txt")),
    ("package.json", include_str!("javascript/package.json.txt")),
];

const C: [File; 12] = [
    ("configuration.yaml", include_str!("c/configuration.yaml.txt")),
    ("cassettes/example.yaml", include_str!("c/example.yaml.txt")),
    ("Makefile", include_str!("c/Makefile.txt")),
    (".gitignore", include_str!("c/gitignore.txt")),
    ("README.md", include_str!("c/README.md.txt")),
    ("devices.c", include_str!("c/devices.c.txt")),
    ("devices.h", include_str!("c/devices.h.txt")),
    ("handler.c", include_str!("c/handler.c.txt")),
    ("requirements.txt", include_str!("c/requirements.txt.txt")),
    ("test_devices.c", include_str!("c/test_devices.c.txt")),
    ("gen/discovery_handler.c", include_str!("c/gen/discovery_handler.c.txt")),
    ("gen/discovery_handler.h", include_str!("c/gen/discovery_handler.h.txt")),
];

/// The name under which Go's build takes it.
const ADAPTER: &str = "wasi_snapshot_preview1.wasm";
/// An empty file in assembly, with which Go compiles functions without a body natively.
const EMPTY: &str = include_str!("go/gen/empty.s.txt");

const GO: [File; 30] = [
    CONFIGURATION,
    CASSETTE,
    ("Makefile", include_str!("go/Makefile.txt")),
    (".gitignore", include_str!("go/gitignore.txt")),
    ("README.md", include_str!("go/README.md.txt")),
    ("go.mod", include_str!("go/go.mod.txt")),
    ("main.go", include_str!("go/main.go.txt")),
    ("requirements.txt", include_str!("go/requirements.txt.txt")),
    ("devices/devices.go", include_str!("go/devices.go.txt")),
    ("devices/devices_test.go", include_str!("go/devices_test.go.txt")),
    ("export_akri_discovery_handler/handler.go", include_str!("go/handler.go.txt")),
    ("gen/wit_exports/wit_exports.go", include_str!("go/gen/wit_exports.go.txt")),
    ("gen/akri_discovery_cache/wit_bindings.go", include_str!("go/gen/cache.go.txt")),
    ("gen/akri_discovery_cache/empty.s", EMPTY),
    ("gen/akri_discovery_handler/wit_bindings.go", include_str!("go/gen/handler.go.txt")),
    ("gen/akri_discovery_handler/empty.s", EMPTY),
    ("gen/akri_discovery_logging/wit_bindings.go", include_str!("go/gen/logging.go.txt")),
    ("gen/akri_discovery_logging/empty.s", EMPTY),
    ("gen/akri_discovery_multicast/wit_bindings.go", include_str!("go/gen/multicast.go.txt")),
    ("gen/akri_discovery_multicast/empty.s", EMPTY),
    ("gen/akri_discovery_properties/wit_bindings.go", include_str!("go/gen/properties.go.txt")),
    ("gen/akri_discovery_properties/empty.s", EMPTY),
    ("gen/akri_discovery_round/wit_bindings.go", include_str!("go/gen/round.go.txt")),
    ("gen/akri_discovery_round/empty.s", EMPTY),
    ("gen/akri_discovery_secrets/wit_bindings.go", include_str!("go/gen/secrets.go.txt")),
    ("gen/akri_discovery_secrets/empty.s", EMPTY),
    ("gen/akri_discovery_types/wit_bindings.go", include_str!("go/gen/types.go.txt")),
    ("gen/akri_discovery_types/empty.s", EMPTY),
    ("gen/akri_discovery_udev/wit_bindings.go", include_str!("go/gen/udev.go.txt")),
    ("gen/akri_discovery_udev/empty.s", EMPTY),
];

/// The WIT files of this version, with the packages they depend on.
pub(crate) const WIT: [File; 18] = [
    ("cache.wit", include_str!("../../../../wit/cache.wit")),
    ("handler.wit", include_str!("../../../../wit/handler.wit")),
    ("logging.wit", include_str!("../../../../wit/logging.wit")),
    ("multicast.wit", include_str!("../../../../wit/multicast.wit")),
    ("network.wit", include_str!("../../../../wit/network.wit")),
    ("properties.wit", include_str!("../../../../wit/properties.wit")),
    ("round.wit", include_str!("../../../../wit/round.wit")),
    ("types.wit", include_str!("../../../../wit/types.wit")),
    ("udev.wit", include_str!("../../../../wit/udev.wit")),
    ("world.wit", include_str!("../../../../wit/world.wit")),
    ("deps/README.md", include_str!("../../../../wit/deps/README.md")),
    ("deps/cli.wit", include_str!("../../../../wit/deps/cli.wit")),
    ("deps/clocks.wit", include_str!("../../../../wit/deps/clocks.wit")),
    ("deps/filesystem.wit", include_str!("../../../../wit/deps/filesystem.wit")),
    ("deps/http.wit", include_str!("../../../../wit/deps/http.wit")),
    ("deps/io.wit", include_str!("../../../../wit/deps/io.wit")),
    ("deps/random.wit", include_str!("../../../../wit/deps/random.wit")),
    ("deps/sockets.wit", include_str!("../../../../wit/deps/sockets.wit")),
];
