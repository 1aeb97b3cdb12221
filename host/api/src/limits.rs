//! Limits of a DiscoveryHandler, as administrators write them, and their conversion to the model.

use std::ops::RangeInclusive;
use std::time::Duration;

use akri_model::grant as model;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::duration::{parse_duration, parse_memory};
use crate::validate::FieldErrors;

/// The limits of a handler.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Limits {
    /// Time of a round, such as `60s`; default `10s`, at most `5m`.
    pub round: Option<String>,
    /// Linear memory and tables of a round, such as `32Mi`; default `64Mi`, at most `1Gi`.
    #[schemars(regex(pattern = r"^[0-9]+(Ki|Mi|Gi)?$"))]
    pub memory: Option<String>,
    /// Devices in one answer; default 4,096, at most 65,536.
    #[schemars(range(min = 1, max = 65_536))]
    pub devices: Option<i64>,
    /// Properties, and likewise mounts and device specs, of one device; default 64, at most 1,024.
    #[schemars(range(min = 0, max = 1024))]
    pub properties: Option<i64>,
    /// Any string of an answer, such as `1Ki`; default `4Ki`, at most `64Ki`.
    #[schemars(regex(pattern = r"^[0-9]+(Ki|Mi|Gi)?$"))]
    pub string: Option<String>,
    /// Log lines of a round; default 64, at most 4,096.
    #[schemars(range(min = 0, max = 4096))]
    pub log_lines: Option<i64>,
    /// Notes of a round; default 10, at most 100.
    #[schemars(range(min = 0, max = 100))]
    pub notes: Option<i64>,
    /// The size of the handler's cache between rounds of a Configuration, such as `1Mi`; default `256Ki`, at most
    /// `16Mi`.
    #[schemars(regex(pattern = r"^[0-9]+(Ki|Mi|Gi)?$"))]
    pub cache: Option<String>,
    /// Open sockets and HTTP requests under way; default 64, at most 1,024.
    #[schemars(range(min = 1, max = 1024))]
    pub connections: Option<i64>,
    /// Limits on compiling the component.
    pub compile: Option<CompileLimits>,
}

/// Limits on compiling a component. Languages with a runtime of their own, such as Python, need more than the default.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompileLimits {
    /// Memory, such as `512Mi`; default `256Mi`, at most `4Gi`.
    #[schemars(regex(pattern = r"^[0-9]+(Ki|Mi|Gi)?$"))]
    pub memory: Option<String>,
    /// Processor time, such as `2m`; default `30s`, at most `10m`.
    pub time: Option<String>,
}

/// The limits in the model. An invalid limit leaves the default and is an error below `/spec/limits`.
pub(crate) fn read(limits: &Limits, errors: &mut FieldErrors) -> model::Limits {
    let default = model::Limits::default();
    let mut reader = Reader { errors };
    model::Limits {
        round: reader.time("round", limits.round.as_deref(), ("1ms", "5m")).unwrap_or(default.round),
        memory_bytes: reader.bytes("memory", limits.memory.as_deref(), ("1Mi", "1Gi")).unwrap_or(default.memory_bytes),
        devices: reader.count("devices", limits.devices, 1..=65_536).unwrap_or(default.devices),
        properties: reader.count("properties", limits.properties, 0..=1024).unwrap_or(default.properties),
        string_bytes: reader.bytes("string", limits.string.as_deref(), ("64", "64Ki")).unwrap_or(default.string_bytes),
        log_lines: reader.count("logLines", limits.log_lines, 0..=4096).unwrap_or(default.log_lines),
        notes: reader.count("notes", limits.notes, 0..=100).unwrap_or(default.notes),
        cache_bytes: reader.bytes("cache", limits.cache.as_deref(), ("0", "16Mi")).unwrap_or(default.cache_bytes),
        connections: reader.count("connections", limits.connections, 1..=1024).unwrap_or(default.connections),
        compile: reader.compile(limits.compile.as_ref()),
    }
}

struct Reader<'a> {
    errors: &'a mut FieldErrors,
}

impl Reader<'_> {
    fn refuse(&mut self, field: &str, message: String) {
        self.errors.add(format!("/spec/limits/{field}"), message);
    }

    fn compile(&mut self, limits: Option<&CompileLimits>) -> model::CompileLimits {
        let (default, none) = (model::CompileLimits::default(), CompileLimits::default());
        let CompileLimits { memory, time } = limits.unwrap_or(&none);
        let bytes = self.bytes("compile/memory", memory.as_deref(), ("32Mi", "4Gi"));
        model::CompileLimits {
            memory_bytes: bytes.unwrap_or(default.memory_bytes),
            time: self.time("compile/time", time.as_deref(), ("1s", "10m")).unwrap_or(default.time),
        }
    }

    fn time(&mut self, field: &str, text: Option<&str>, bounds: (&str, &str)) -> Option<Duration> {
        self.quantity(field, text?, bounds, parse_duration)
    }

    fn bytes(&mut self, field: &str, text: Option<&str>, bounds: (&str, &str)) -> Option<usize> {
        self.quantity(field, text?, bounds, parse_memory).and_then(|bytes| usize::try_from(bytes).ok())
    }

    fn quantity<Q: Default + PartialOrd>(
        &mut self,
        field: &str,
        text: &str,
        (least, most): (&str, &str),
        parse: fn(&str) -> Result<Q, String>,
    ) -> Option<Q> {
        let bound = |text| parse(text).unwrap_or_default();
        match parse(text) {
            Err(error) => self.refuse(field, error),
            Ok(quantity) if (bound(least)..=bound(most)).contains(&quantity) => return Some(quantity),
            Ok(_) => self.refuse(field, format!("is not between {least} and {most}")),
        }
        None
    }

    fn count(&mut self, field: &str, number: Option<i64>, allowed: RangeInclusive<i64>) -> Option<usize> {
        let number = number?;
        if allowed.contains(&number) {
            return usize::try_from(number).ok();
        }
        self.refuse(field, format!("is not between {} and {}", allowed.start(), allowed.end()));
        None
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read_json(limits: Value) -> (model::Limits, Vec<String>) {
        let limits: Limits = serde_json::from_value(limits).unwrap();
        let mut errors = FieldErrors::default();
        let read = read(&limits, &mut errors);
        (read, errors.0.into_iter().map(|error| error.path).collect())
    }

    #[test]
    fn unnamed_limits_have_defaults() {
        assert_eq!(read_json(json!({})), (model::Limits::default(), Vec::new()));
        let (limits, errors) = read_json(json!({"round": "60s", "cache": "1Mi", "connections": 8, "string": "1Ki"}));
        assert_eq!(errors, Vec::<String>::new());
        assert_eq!((limits.round.as_secs(), limits.cache_bytes, limits.connections), (60, 1 << 20, 8));
        assert_eq!((limits.string_bytes, limits.devices), (1024, 4096));
    }

    /// The API server knows the same bounds, so that `kubectl` refuses at once what the agent would refuse later.
    #[test]
    fn schema_has_the_bounds_of_the_validator() {
        let crd = serde_json::to_value(<crate::DiscoveryHandler as kube::CustomResourceExt>::crd()).unwrap();
        let spec = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap();
        let limits = spec.pointer("/properties/limits/properties").unwrap();
        for field in ["devices", "properties", "logLines", "notes", "connections"] {
            let bound = |name: &str| limits[field][name].as_f64().unwrap() as i64;
            let errors = |number: i64| read_json(json!({field: number})).1.len();
            let (least, most) = (bound("minimum"), bound("maximum"));
            let found = [least - 1, least, most, most + 1].map(errors);
            assert_eq!(found, [1, 0, 0, 1], "{field}: {least} to {most}");
        }
        for field in ["memory", "string", "cache"] {
            assert_eq!(limits[field]["pattern"], "^[0-9]+(Ki|Mi|Gi)?$", "{field}");
        }
        assert_eq!(limits.pointer("/compile/properties/memory/pattern").unwrap(), "^[0-9]+(Ki|Mi|Gi)?$");
    }

    #[test]
    fn compile_limits_are_bounded() {
        let (limits, errors) = read_json(json!({"compile": {"memory": "512Mi", "time": "2m"}}));
        assert_eq!((limits.compile.memory_bytes, limits.compile.time.as_secs()), (512 << 20, 120));
        assert_eq!(errors, Vec::<String>::new());
        let (limits, errors) = read_json(json!({"compile": {"memory": "8Gi", "time": "1h"}}));
        assert_eq!(limits, model::Limits::default());
        assert_eq!(errors, ["/spec/limits/compile/memory", "/spec/limits/compile/time"]);
    }

    #[test]
    fn every_limit_is_bounded_itself() {
        for (field, value) in [
            ("round", json!("0s")),
            ("round", json!("1h")),
            ("round", json!("soon")),
            ("memory", json!("2Gi")),
            ("memory", json!("1")),
            ("memory", json!("64MB")),
            ("devices", json!(0)),
            ("devices", json!(65_537)),
            ("properties", json!(-1)),
            ("string", json!("1Mi")),
            ("logLines", json!(5000)),
            ("notes", json!(101)),
            ("cache", json!("17Mi")),
            ("connections", json!(0)),
        ] {
            let (limits, errors) = read_json(json!({field: value}));
            assert_eq!((limits, errors), (model::Limits::default(), vec![format!("/spec/limits/{field}")]), "{value}");
        }
    }
}
