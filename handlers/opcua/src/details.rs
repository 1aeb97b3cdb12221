//! The `discoveryDetails` of opcua.

use std::collections::BTreeSet;

use akri_handler::{Filter, Problem, read};
use serde::Deserialize;

use crate::url::Url;

/// Maximum number of bad URLs reported at once.
const MAX_PROBLEMS: usize = 16;

/// Maximum number of discovery URLs, all of which must be queried within a round.
const MAX_URLS: usize = 256;

/// The standard discovery server of the local machine.
const DEFAULT_URL: &str = "opc.tcp://localhost:4840/";

/// The details of one Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Details {
    /// The discovery URLs in the order given, without duplicates.
    pub discovery_urls: Vec<DiscoveryUrl>,
    /// The filter of application names, compared verbatim; `None` selects all.
    pub application_names: Option<Filter<String>>,
    /// The meaning of "the same server".
    pub identify_by: IdentifyBy,
}

/// The part of list entries that identifies a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
pub enum IdentifyBy {
    /// The application URI.
    #[default]
    ApplicationUri,
    /// The URL: for servers that share the URI with which their SDK was delivered.
    Url,
    /// The first URL that a server is listed with, as in upstream Akri: its Instances keep their names.
    ListedUrl,
}

/// A discovery URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveryUrl {
    /// The text as written, used as origin of devices.
    pub text: String,
    /// The parsed URL.
    pub url: Url,
}

/// The fields of the details as written.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Fields {
    opcua_discovery_method: Method,
    application_names: Option<Filter<String>>,
    #[serde(default)]
    identify_by: IdentifyBy,
}

/// The discovery method; Akri's API allows for others.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Method {
    standard: Standard,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Standard {
    #[serde(default = "default_urls")]
    discovery_urls: Vec<String>,
}

fn default_urls() -> Vec<String> {
    vec![DEFAULT_URL.to_owned()]
}

impl Details {
    /// Parses the details as the host passes them: as JSON, or `None` if they are neither YAML nor JSON.
    ///
    /// # Errors
    /// At least one problem: the first bad field, or up to 16 bad URLs.
    pub fn parse(json: Option<&str>) -> Result<Self, Vec<Problem>> {
        let mapping = "the details must be a mapping with the field 'opcuaDiscoveryMethod'";
        let fields: Fields = read(json, mapping).map_err(|one| vec![one])?;
        let discovery_urls = discovery_urls(fields.opcua_discovery_method.standard.discovery_urls)?;
        let Fields { application_names, identify_by, .. } = fields;
        Ok(Self { discovery_urls, application_names, identify_by })
    }
}

fn discovery_urls(texts: Vec<String>) -> Result<Vec<DiscoveryUrl>, Vec<Problem>> {
    const PATH: &str = "/opcuaDiscoveryMethod/standard/discoveryUrls";
    if texts.len() > MAX_URLS {
        let message = format!("{} URLs are too many for one Configuration (at most {MAX_URLS})", texts.len());
        return Err(vec![Problem::invalid(PATH, message)]);
    }
    let (mut urls, mut problems, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for (index, text) in texts.into_iter().enumerate() {
        match text.parse::<Url>() {
            Ok(url) if seen.insert(url.to_string()) => urls.push(DiscoveryUrl { text, url }),
            Ok(_) => {}
            Err(error) => problems.push(Problem {
                path: format!("{PATH}/{index}"),
                reason: "InvalidUrl",
                message: format!("'{text}' is no discovery URL, such as {DEFAULT_URL}: {error}"),
            }),
        }
    }
    problems.truncate(MAX_PROBLEMS);
    if problems.is_empty() { Ok(urls) } else { Err(problems) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(json: &serde_json::Value) -> Result<Details, Vec<Problem>> {
        Details::parse(Some(&json.to_string()))
    }

    fn urls(urls: &serde_json::Value) -> Result<Vec<String>, Vec<Problem>> {
        let details = parse(&json!({"opcuaDiscoveryMethod": {"standard": {"discoveryUrls": urls}}}))?;
        Ok(details.discovery_urls.into_iter().map(|url| url.text).collect())
    }

    #[test]
    fn default_is_the_local_discovery_server() {
        let details = parse(&json!({"opcuaDiscoveryMethod": {"standard": {}}})).unwrap();
        assert_eq!(details.discovery_urls[0].text, "opc.tcp://localhost:4840/");
        assert_eq!((details.application_names, details.identify_by), (None, IdentifyBy::ApplicationUri));
        let by_url = parse(&json!({"opcuaDiscoveryMethod": {"standard": {}}, "identifyBy": "Url"})).unwrap();
        assert_eq!(by_url.identify_by, IdentifyBy::Url);
        let by_url = parse(&json!({"opcuaDiscoveryMethod": {"standard": {}}, "identifyBy": "ListedUrl"})).unwrap();
        assert_eq!(by_url.identify_by, IdentifyBy::ListedUrl);
        assert_eq!(urls(&json!([])).unwrap(), [""; 0], "none are none");
    }

    #[test]
    fn duplicate_urls_count_once() {
        let given = json!(["opc.tcp://b", "opc.tcp://a:1/", "OPC.TCP://b:4840", "opc.tcp://a:1"]);
        assert_eq!(urls(&given).unwrap(), ["opc.tcp://b", "opc.tcp://a:1/", "opc.tcp://a:1"]);
    }

    #[test]
    fn names_are_filtered_as_upstream_does() {
        for (filter, pump, other) in [
            (json!({"action": "Include", "items": ["Pump"]}), true, false),
            (json!({"action": "Exclude", "items": ["Pump"]}), false, true),
            (json!({"items": ["Pump"]}), true, false),
            (json!({"action": "Exclude", "items": []}), true, true),
        ] {
            let details = json!({"opcuaDiscoveryMethod": {"standard": {}}, "applicationNames": filter});
            let names = parse(&details).unwrap().application_names.unwrap();
            let selects = |name: &str| names.selects(|item| item == name);
            assert_eq!((selects("Pump"), selects("pump"), selects("")), (pump, other, other), "{filter}");
        }
    }

    #[test]
    fn details_that_are_not_a_mapping_are_refused() {
        for json in ["null", "[]", "3", "[[]]"] {
            let message = "the details must be a mapping with the field 'opcuaDiscoveryMethod'";
            assert_eq!(Details::parse(Some(json)), Err(vec![Problem::invalid("", message)]));
        }
        for json in [None, Some(""), Some("{")] {
            assert_eq!(Details::parse(json), Err(vec![Problem::invalid("", "the details are neither YAML nor JSON")]));
        }
    }

    #[test]
    fn bad_field_is_named() {
        let method = json!({"standard": {}});
        for (details, path, message) in [
            (json!({}), "", "missing field `opcuaDiscoveryMethod`"),
            (json!({"opcuaDiscoveryMethod": {}}), "/opcuaDiscoveryMethod", "missing field `standard`"),
            (
                json!({"opcuaDiscoveryMethod": {"scan": {}}}),
                "/opcuaDiscoveryMethod/scan",
                "unknown field `scan`, expected `standard`",
            ),
            (
                json!({"opcuaDiscoveryMethod": {"standard": {"discoveryUrls": "opc.tcp://a"}}}),
                "/opcuaDiscoveryMethod/standard/discoveryUrls",
                "invalid type: string \"opc.tcp://a\", expected a sequence",
            ),
            (
                json!({"opcuaDiscoveryMethod": method, "applicationNames": {"action": "include"}}),
                "/applicationNames/action",
                "unknown variant `include`, expected `Include` or `Exclude`",
            ),
            (
                json!({"opcuaDiscoveryMethod": method, "applicationNames": ["Include", ["Pump"]]}),
                "/applicationNames",
                "invalid type: sequence, expected a mapping such as {items: [...]}",
            ),
            (
                json!({"opcuaDiscoveryMethod": method, "applicationNames": {"items": []}}),
                "/applicationNames",
                "without items it selects nothing; write {items: [...]}",
            ),
            (
                json!({"opcuaDiscoveryMethod": method, "applicationName": {}}),
                "/applicationName",
                "unknown field `applicationName`, expected one of `opcuaDiscoveryMethod`, `applicationNames`, `identifyBy`",
            ),
        ] {
            assert_eq!(parse(&details), Err(vec![Problem::invalid(path, message)]), "{details}");
        }
    }

    #[test]
    fn every_bad_url_is_named_up_to_a_bound() {
        let problems = urls(&json!(["http://a:1", "opc.tcp://a", "opc.tcp://a:x"])).unwrap_err();
        let paths: Vec<&str> = problems.iter().map(|problem| problem.path.as_str()).collect();
        let path = "/opcuaDiscoveryMethod/standard/discoveryUrls";
        assert_eq!(paths, [format!("{path}/0"), format!("{path}/2")]);
        assert_eq!(problems[0].reason, "InvalidUrl");
        let message =
            "'http://a:1' is no discovery URL, such as opc.tcp://localhost:4840/: it has to begin with 'opc.tcp://'";
        assert_eq!(problems[0].message, message);
        assert_eq!(urls(&json!(vec!["?"; 200])).unwrap_err().len(), MAX_PROBLEMS);
    }

    #[test]
    fn number_of_urls_is_bounded() {
        let many = |count: usize| json!((0..count).map(|host| format!("opc.tcp://h{host}")).collect::<Vec<_>>());
        assert_eq!(urls(&many(MAX_URLS)).unwrap().len(), MAX_URLS);
        assert_eq!(
            urls(&many(MAX_URLS + 1)).unwrap_err()[0].message,
            "257 URLs are too many for one Configuration (at most 256)"
        );
    }
}
