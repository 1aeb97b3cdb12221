//! Bindings of the contract for the languages whose tools make none while they build: C and Go. They are made of the WIT package of
//! this version by the generators of `wit-bindgen`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use clap::ValueEnum;
use wit_bindgen_core::wit_parser::{Resolve, SourceMap, UnresolvedPackageGroup, WorldId};
use wit_bindgen_core::{Files as Generated, WorldGenerator};

use crate::templates::{Files, wit};

/// The world of WIT that a handler is a component of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum World {
    /// The contract: devices of the node, groups, properties.
    #[value(name = "discovery-handler")]
    Discovery,
    /// With TCP, UDP and names, by `wasi:sockets`.
    #[value(name = "net-handler")]
    Net,
    /// With HTTP requests, by `wasi:http`.
    #[value(name = "http-handler")]
    Http,
}

impl World {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Discovery => "discovery-handler",
            Self::Net => "net-handler",
            Self::Http => "http-handler",
        }
    }
}

/// Returns bindings for C. Their names are those of `discovery-handler`, whichever the world is.
///
/// # Errors
/// If the package is wrong, which a test excludes.
pub(crate) fn for_c(world: World) -> anyhow::Result<Files> {
    let name = World::Discovery.name().to_owned();
    // `akri handler componentize` adds the types that an object file would.
    let options = wit_bindgen_c::Opts { rename_world: Some(name), no_object_file: true, ..Default::default() };
    generate(&mut *options.build(), world)
}

/// Returns bindings for Go, which are packages of a module.
///
/// # Errors
/// If the package is wrong, which a test excludes.
pub(crate) fn for_go(world: World, module: &str) -> anyhow::Result<Files> {
    let options = wit_bindgen_go::Opts {
        format: wit_bindgen_go::Format::False, // no program is run
        pkg_name: Some(format!("{module}/gen")),
        export_pkg_name: Some(module.to_owned()),
        ..Default::default()
    };
    generate(&mut *options.build(), world)
}

fn generate(generator: &mut dyn WorldGenerator, world: World) -> anyhow::Result<Files> {
    let (mut resolve, world) = resolve(world)?;
    let mut generated = Generated::default();
    generator.generate(&mut resolve, world, &mut generated)?;
    Ok(generated.iter().map(|(path, bytes)| (Path::new("gen").join(path), bytes.to_vec())).collect())
}

/// Returns the contract, and the world in it.
///
/// # Errors
/// If the package is wrong, which a test excludes.
pub(crate) fn resolve(world: World) -> anyhow::Result<(Resolve, WorldId)> {
    let mut resolve = Resolve::default();
    let (package, dependencies) = packages()?;
    let package = resolve.push_groups(package, dependencies).map_err(|error| anyhow!("{error:?}"))?;
    let world = resolve.select_world(&[package], Some(world.name()))?;
    Ok((resolve, world))
}

/// Parses the WIT package, whose files are one group, and the packages it depends on, which have a file each.
fn packages() -> anyhow::Result<(UnresolvedPackageGroup, Vec<UnresolvedPackageGroup>)> {
    let (mut own, mut dependencies) = (SourceMap::default(), Vec::new());
    let is_wit = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "wit");
    for (path, bytes) in wit().into_iter().filter(|(path, _)| is_wit(path)) {
        let text = String::from_utf8(bytes).with_context(|| path.display().to_string())?;
        if path.starts_with("deps") {
            let mut source = SourceMap::default();
            source.push(&path, text);
            dependencies.push(parse(source)?);
        } else {
            own.push(&path, text);
        }
    }
    Ok((parse(own)?, dependencies))
}

fn parse(source: SourceMap) -> anyhow::Result<UnresolvedPackageGroup> {
    source.parse().map_err(|(_, error)| anyhow!("{error:?}"))
}
