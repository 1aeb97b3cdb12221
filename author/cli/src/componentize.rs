//! `akri handler componentize`: a component of the module that a compiler makes, for languages whose compilers make no component.

use std::path::Path;
use std::process::ExitCode;

use akri_node::regular_file;
use anyhow::{Context as _, Error, anyhow, bail};
use wasi_preview1_component_adapter_provider::{
    WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
};
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};

use crate::args::ComponentizeArgs;
use crate::bindings::{World, resolve};
use crate::output_file;
use crate::schema;

/// Bytes of a module.
const MAX_MODULE: u64 = 256 << 20;
/// The first bytes of a component.
const COMPONENT: &[u8; 8] = b"\0asm\x0d\0\x01\0";

/// Writes the component.
pub(super) fn run(args: &ComponentizeArgs) -> anyhow::Result<ExitCode> {
    let module = read(&args.module)?;
    let schema = args.details_schema.as_ref().map(|file| Ok::<_, Error>((file, read(file)?))).transpose()?;
    let is_component = schema.is_some() && module.starts_with(COMPONENT);
    let made = if is_component { Ok(module) } else { component(module, args.world) };
    let mut component = made.with_context(|| format!("'{}'", args.module.display()))?;
    if let Some((file, schema)) = schema {
        schema::add(&mut component, &schema).map_err(|why| anyhow!("'{}': {why}", file.display()))?;
    }
    output_file::write(&args.component, &component)?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &Path) -> anyhow::Result<Vec<u8>> {
    regular_file::read(path, MAX_MODULE).with_context(|| format!("cannot read '{}'", path.display()))
}

/// Returns the component of a module for a world. WASI 0.1, if the module imports it, becomes WASI 0.2.
fn component(mut module: Vec<u8>, world: World) -> anyhow::Result<Vec<u8>> {
    let header = module.first_chunk();
    match header {
        Some(b"\0asm\x01\0\0\0") => {}
        Some(COMPONENT) => bail!("this is a component already"),
        _ => bail!("this is no module of WebAssembly"),
    }
    let (resolve, world) = resolve(world)?;
    embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8)?;
    let encoder = ComponentEncoder::default().module(&module)?;
    let mut encoder =
        encoder.adapter(WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME, WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER)?.validate(true);
    encoder.encode()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_that_is_no_module_of_the_world_is_refused() {
        let empty = b"\0asm\x01\0\0\0".to_vec();
        let cases = [
            (b"<html>".to_vec(), "this is no module of WebAssembly"),
            (Vec::new(), "this is no module of WebAssembly"),
            (b"\0asm\x0d\0\x01\0".to_vec(), "this is a component already"),
            (empty, "akri:discovery/handler"), // what it does not export
        ];
        for (bytes, message) in cases {
            let error = format!("{:#}", component(bytes, World::Discovery).unwrap_err());
            assert!(error.contains(message), "{error}");
        }
    }
}
