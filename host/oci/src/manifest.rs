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

/// The reason why a manifest is not the one of a component.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// It is not a manifest.
    #[error("the manifest is not an OCI image manifest: {0}")]
    Format(String),
    /// It lists several images.
    #[error("it is an index of several images; name the digest of one of them")]
    Index,
    /// It is an image of something else.
    #[error("it holds no component: its configuration is '{0}', not '{CONFIG_TYPE}'")]
    NoComponent(String),
    /// It has too few or too many layers.
    #[error("it has {0} layers; an image of a component has one")]
    Layers(usize),
    /// Its layer is something else.
    #[error("its layer is '{0}', not '{COMPONENT_TYPE}'")]
    LayerType(String),
    /// The component is too large.
    #[error("its component has {0} bytes, more than {MAX_COMPONENT}")]
    TooLarge(u64),
    /// A digest is of a kind that is not supported.
    #[error("its digest '{0}' is not 'sha256:' and 64 lower-case hex digits")]
    Digest(String),
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

    pub(crate) fn digest(&self) -> Result<Sha256Digest, ManifestError> {
        self.digest.parse().map_err(|_| ManifestError::Digest(shortened(&self.digest)))
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
pub(crate) fn read(manifest: &[u8]) -> Result<Manifest, ManifestError> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Head {
        media_type: Option<String>,
        manifests: Option<serde::de::IgnoredAny>,
    }
    let format = |error: serde_json::Error| ManifestError::Format(shortened(&error.to_string()));
    let head: Head = serde_json::from_slice(manifest).map_err(format)?;
    if head.manifests.is_some() || head.media_type.as_deref() == Some(INDEX_TYPE) {
        return Err(ManifestError::Index);
    }
    let manifest: Manifest = serde_json::from_slice(manifest).map_err(format)?;
    let other = manifest.media_type.as_ref().filter(|media_type| *media_type != MANIFEST_TYPE);
    match other {
        Some(other) => Err(ManifestError::Format(format!("its media type is '{}'", shortened(other)))),
        None if manifest.schema_version != 2 => Err(ManifestError::Format("its schemaVersion is not 2".to_owned())),
        None => Ok(manifest),
    }
}

/// Checks that a manifest is the one of a component, and returns its layer.
pub fn check_manifest(manifest: &[u8]) -> Result<Layer, ManifestError> {
    let manifest = read(manifest)?;
    if manifest.config.media_type != CONFIG_TYPE {
        return Err(ManifestError::NoComponent(shortened(&manifest.config.media_type)));
    }
    let [layer] = manifest.layers.as_slice() else { return Err(ManifestError::Layers(manifest.layers.len())) };
    if layer.media_type != COMPONENT_TYPE {
        return Err(ManifestError::LayerType(shortened(&layer.media_type)));
    }
    if layer.size > MAX_COMPONENT {
        return Err(ManifestError::TooLarge(layer.size));
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

    fn packed() -> Value {
        let packed = pack(b"component", &["akri:discovery/handler@0.1.0".to_owned()], &[]).unwrap();
        assert_eq!(check_manifest(&packed.manifest), Ok(Layer { digest: digest_of(b"component"), size: 9 }));
        serde_json::from_slice(&packed.manifest).unwrap()
    }

    fn with(change: impl FnOnce(&mut Value)) -> Result<Layer, ManifestError> {
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
        assert_eq!(with(|m| m["layers"] = json!([])), Err(ManifestError::Layers(0)));
        assert_eq!(with(|m| m["layers"] = json!([m["layers"][0], m["layers"][0]])), Err(ManifestError::Layers(2)));
        let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
        assert_eq!(with(|m| m["layers"][0]["mediaType"] = json!(layer)), Err(ManifestError::LayerType(layer.into())));
        let config = "application/vnd.oci.image.config.v1+json";
        assert_eq!(with(|m| m["config"]["mediaType"] = json!(config)), Err(ManifestError::NoComponent(config.into())));
        assert_eq!(with(|m| m["layers"][0]["size"] = json!(10u64 << 30)), Err(ManifestError::TooLarge(10 << 30)));
        assert_eq!(with(|m| m["layers"][0]["digest"] = json!("md5:1")), Err(ManifestError::Digest("md5:1".into())));
        assert_eq!(with(|m| m["manifests"] = json!([])), Err(ManifestError::Index));
        for change in ["schemaVersion", "config", "layers"] {
            let removed = with(|m| drop(m.as_object_mut().unwrap().remove(change)));
            assert!(matches!(removed, Err(ManifestError::Format(_))), "{change}");
        }
        assert!(matches!(with(|m| m["layers"][0]["size"] = json!(-1)), Err(ManifestError::Format(_))));
        assert!(
            matches!(with(|m| m["mediaType"] = json!("x\n")), Err(ManifestError::Format(why)) if !why.contains('\n'))
        );
        assert!(matches!(check_manifest(b"\xff"), Err(ManifestError::Format(_))));
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
