//! Compiles `proto/` with protox, so that no protoc has to be installed.

use std::error::Error;

const PROTO: &str = "../../proto";
const FILES: [&str; 3] = ["discovery.proto", "deviceplugin.proto", "podresources.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO}");
    println!("cargo::rerun-if-changed=build.rs");
    let descriptors = protox::compile(FILES, [PROTO])?;
    tonic_prost_build::configure().codec_path("crate::codec::SmallCodec").compile_fds(descriptors)?;
    Ok(())
}
