//! Manifests of images that hold one component.

use akri_model::image::Sha256Digest;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// Limit on a component, in bytes, as on component files.
pub const MAX_COMPONENT: u64 = 64 << 20;

/// Limit on a manifest, in bytes.
pub(crate) const MAX_MANIFEST: u64 = 256 << 10;

pub(crate) const MANIFEST_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const CONFIG_TYPE: &str = "application/vnd.wasm.config.v0+json";
const COMPONENT_TYPE: &str = "application/wasm";

/// Returns the digest of a content.
pub fn digest_of(bytes: &[u8]) -> Sha256Digest {
    Sha256Digest::new(Sha256::digest(bytes).into())
}

/// The layer of an image: a component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layer {
    /// The digest of the component.
    pub digest: Sha256Digest,
    /// Its size in bytes.
    pub size: u64,
}

/// A descriptor in a manifest.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: String,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub(crate) annotations: serde_json::Map<String, serde_json::Value>,
}

impl Descriptor {
    fn new(media_type: &str, content: &[u8]) -> Self {
        let (digest, size) = (digest_of(content).to_string(), content.len() as u64);
        Self { media_type: media_type.to_owned(), digest, size, annotations: serde_json::Map::new() }
    }

    pub(crate) fn digest(&self) -> Result<Sha256Digest, String> {
        let wrong =
            || format!("its digest '{}' is not 'sha256:' and 64 lower-case hex digits", shortened(&self.digest));
        self.digest.parse().map_err(|_| wrong())
    }
}

/// An image manifest, as far as it matters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u8,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    media_type: Option<String>,
    config: Descriptor,
    pub(crate) layers: Vec<Descriptor>,
}

/// Reads an image manifest of any kind.
pub(crate) fn read(manifest: &[u8]) -> Result<Manifest, String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
    }
    let no_manifest = |why: &str| format!("the manifest is not an OCI image manifest: {why}");
    let format = |error: serde_json::Error| no_manifest(&shortened(&error.to_string()));
    let head: Head = serde_json::from_slice(manifest).map_err(format)?;
    if head.manifests.is_some() || head.media_type.as_deref() == Some(INDEX_TYPE) {
        return Err("it is an index of several images; name the digest of one of them".to_owned());
    }
    let manifest: Manifest = serde_json::from_slice(manifest).map_err(format)?;
    let other = manifest.media_type.as_ref().filter(|media_type| *media_type != MANIFEST_TYPE);
    match other {
        Some(other) => Err(no_manifest(&format!("its media type is '{}'", shortened(other)))),
        None if manifest.schema_version != 2 => Err(no_manifest("its schemaVersion is not 2")),
        None => Ok(manifest),
    }
}

/// Checks that a manifest is the one of a component, and returns its layer.
pub fn check_manifest(manifest: &[u8]) -> Result<Layer, String> {
    let manifest = read(manifest)?;
    let media_type = &manifest.config.media_type;
    if media_type != CONFIG_TYPE {
        let media_type = shortened(media_type);
        let why = format!("it holds no component: its configuration is '{media_type}', not '{CONFIG_TYPE}'");
        return Err(why);
    }
    let [layer] = manifest.layers.as_slice() else {
        let count = manifest.layers.len();
        return Err(format!("it has {count} layers; an image of a component has one"));
    };
    if layer.media_type != COMPONENT_TYPE {
        let media_type = shortened(&layer.media_type);
        return Err(format!("its layer is '{media_type}', not '{COMPONENT_TYPE}'"));
    }
    if layer.size > MAX_COMPONENT {
        return Err(format!("its component has {} bytes, more than {MAX_COMPONENT}", layer.size));
    }
    Ok(Layer { digest: layer.digest()?, size: layer.size })
}

/// The parts of an image of a component.
pub(crate) struct Packed {
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
}

/// Packs a component. The same component makes the same image.
pub(crate) fn pack(component: &[u8], exports: &[String], imports: &[String]) -> serde_json::Result<Packed> {
    let layer = Descriptor::new(COMPONENT_TYPE, component);
    let config = serde_json::to_vec(&serde_json::json!({
        "created": "1970-01-01T00:00:00Z", // any other time would make another image of the same component
        "architecture": "wasm",
        "os": "wasip2",
        "layerDigests": [layer.digest],
        "component": {"exports": exports, "imports": imports},
    }))?;
    let manifest = Manifest {
        schema_version: 2,
        media_type: Some(MANIFEST_TYPE.to_owned()),
        config: Descriptor::new(CONFIG_TYPE, &config),
        layers: vec![layer],
    };
    Ok(Packed { manifest: serde_json::to_vec(&manifest)?, config })
}

/// Returns a text of a registry as it may be in a message.
pub(crate) fn shortened(text: &str) -> String {
    text.chars().take(200).flat_map(char::escape_debug).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    const NO_MANIFEST: &str = "the manifest is not an OCI image manifest: ";

    fn packed() -> Value {
        let packed = pack(b"component", &["akri:discovery/handler@0.1.0".to_owned()], &[]).unwrap();
        assert_eq!(check_manifest(&packed.manifest), Ok(Layer { digest: digest_of(b"component"), size: 9 }));
        serde_json::from_slice(&packed.manifest).unwrap()
    }

    fn with(change: impl FnOnce(&mut Value)) -> Result<Layer, String> {
        let mut manifest = packed();
        change(&mut manifest);
        check_manifest(manifest.to_string().as_bytes())
    }

    #[test]
    fn packed_component_has_the_layout_of_the_working_group() {
        let packed = pack(b"component", &["a".to_owned()], &["b".to_owned()]).unwrap();
        let again = pack(b"component", &["a".to_owned()], &["b".to_owned()]).unwrap();
        assert_eq!(packed.manifest, again.manifest);
        let config: Value = serde_json::from_slice(&packed.config).unwrap();
        assert_eq!(config["layerDigests"], json!([digest_of(b"component").to_string()]));
        assert_eq!((&config["architecture"], &config["os"]), (&json!("wasm"), &json!("wasip2")));
        assert_eq!(config["component"], json!({"exports": ["a"], "imports": ["b"]}));
    }

    #[test] // rule 74
    fn other_manifests_are_refused() {
        assert_eq!(with(|m| drop(m.as_object_mut().unwrap().remove("mediaType"))).map(|layer| layer.size), Ok(9));
        let why = |change: &dyn Fn(&mut Value)| with(|manifest| change(manifest)).unwrap_err().to_string();
        let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
        let config = "application/vnd.oci.image.config.v1+json";
        for (changed, expected) in [
            (why(&|m| m["layers"] = json!([])), "it has 0 layers"),
            (why(&|m| m["layers"] = json!([m["layers"][0], m["layers"][0]])), "it has 2 layers"),
            (
                why(&|m| m["layers"][0]["mediaType"] = json!(layer)),
                "its layer is 'application/vnd.oci.image.layer.v1.tar+gzip'",
            ),
            (why(&|m| m["config"]["mediaType"] = json!(config)), "it holds no component: its configuration is"),
            (why(&|m| m["layers"][0]["size"] = json!(10u64 << 30)), "its component has 10737418240 bytes"),
            (why(&|m| m["layers"][0]["digest"] = json!("md5:1")), "its digest 'md5:1' is not 'sha256:'"),
            (why(&|m| m["manifests"] = json!([])), "it is an index of several images"),
            (why(&|m| m["layers"][0]["size"] = json!(-1)), NO_MANIFEST),
            (why(&|m| m["mediaType"] = json!("x\n")), NO_MANIFEST),
        ] {
            assert!(changed.starts_with(expected) && !changed.contains('\n'), "{changed}");
        }
        for field in ["schemaVersion", "config", "layers"] {
            let removed = why(&|m| drop(m.as_object_mut().unwrap().remove(field)));
            assert!(removed.starts_with(NO_MANIFEST), "{field}: {removed}");
        }
        assert!(check_manifest(b"\xff").unwrap_err().to_string().starts_with(NO_MANIFEST));
    }

    proptest! {
        #[test]
        fn no_manifest_does_harm(at in 0..400usize, byte: u8) {
            let mut manifest = packed().to_string().into_bytes();
            let at = at % manifest.len();
            manifest[at] = byte;
            if let Ok(layer) = check_manifest(&manifest) {
                prop_assert!(layer.size <= MAX_COMPONENT);
            }
        }
    }
}
