//! The handlers that ship with this program: whether they accept the details of a Configuration, and reach what these name.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use akri_api::manifest::typed;
use akri_api::{Configuration, DiscoveryHandler, HandlerRules, configuration_to_model};
use akri_cli::component::read;
use akri_cli::output::print_message;
use akri_cli::program::component_host;
use akri_cli::subject::handlers;
use akri_cluster::local::read_directory;
use akri_discovery::{call, details_json, validate_details};
use akri_model::discovery::RoundError;
use akri_model::grant::Isolation;
use akri_model::property::Resolved;
use akri_model::text::dotted;
use akri_sandbox::{Cache, Component, Host};
use serde_json::Value;

use super::Weight::{self, Differs, InTheWay};
use super::{spec_of, text};

/// The field of a Configuration with the details.
const DETAILS: &str = "/spec/discoveryHandler/discoveryDetails";

/// The handlers of a directory. Each is loaded when the first Configuration names it.
pub(super) struct ShippedHandlers {
    directory: PathBuf,
    host: Host,
    objects: BTreeMap<String, DiscoveryHandler>,
    loaded: BTreeMap<String, Option<Component>>,
}

impl ShippedHandlers {
    /// Reads the objects of the handlers.
    pub(super) fn read(directory: &Path) -> anyhow::Result<Self> {
        let scan = read_directory(directory);
        let objects = handlers(scan.files.values().flatten()).map(|object| (object.handler_name(), object.clone()));
        let (objects, host): (BTreeMap<_, _>, _) = (objects.collect(), component_host(None)?);
        if objects.is_empty() {
            print_message(format!(
                "warning: discoveryDetails are not checked: '{}' has no handlers; name their directory with --components",
                directory.display()
            ));
        }
        Ok(Self { directory: directory.to_owned(), host, objects, loaded: BTreeMap::new() })
    }

    /// Returns what is wrong with the details of a Configuration, and what they name that its handler does not reach.
    pub(super) async fn check(&mut self, object: &Value) -> Vec<(Weight, String)> {
        let is_configuration = (text(object, "/apiVersion"), text(object, "/kind")) == ("akri.sh/v0", "Configuration");
        let handler = self.objects.get(text(object, "/spec/discoveryHandler/name")).cloned();
        let (true, Some(handler)) = (is_configuration, handler) else { return Vec::new() };
        let rules = HandlerRules::from(&handler);
        let hidden = addresses(text(object, DETAILS)).into_iter().filter(|(_, address)| !is_granted(&rules, *address));
        let hidden = hidden.map(|(url, address)| (Differs, not_granted(&url, address)));
        let problems = self.problems(&handler, &rules, object).await;
        problems.into_iter().map(|problem| (InTheWay, problem)).chain(hidden).collect()
    }

    async fn problems(&mut self, handler: &DiscoveryHandler, rules: &HandlerRules, object: &Value) -> Vec<String> {
        let Ok(mut configuration) = typed::<Configuration>(&spec_of(object)) else { return Vec::new() };
        configuration.metadata.namespace.get_or_insert_default();
        let Some(component) = self.component(handler, rules).await else { return Vec::new() };
        let configuration = configuration_to_model(&configuration);
        let details = details_json(&configuration.details).await;
        let call = call(&configuration, details, rules, Resolved::default(), Cache::default());
        match validate_details(&component, call).await {
            Err(RoundError::InvalidDetails(problems)) => {
                let field = |path: &str| dotted(&format!("{DETAILS}{path}"));
                problems.iter().map(|problem| format!("{}: {}", field(&problem.path), problem.message)).collect()
            }
            Err(error) => vec![format!("{}: {error}", dotted(DETAILS))],
            Ok(_) => Vec::new(),
        }
    }

    /// Returns the component of a handler. If it can't be loaded, nothing is checked, with one warning.
    async fn component(&mut self, handler: &DiscoveryHandler, rules: &HandlerRules) -> Option<Component> {
        let name = handler.handler_name();
        if !self.loaded.contains_key(&name) {
            let loaded = self.load(handler, rules).await.inspect_err(|error| {
                print_message(format!("warning: the details of '{name}' are not checked: {error:#}"));
            });
            self.loaded.insert(name.clone(), loaded.ok());
        }
        self.loaded.get(&name).cloned().flatten()
    }

    async fn load(&self, handler: &DiscoveryHandler, rules: &HandlerRules) -> anyhow::Result<Component> {
        let path = self.directory.join(&handler.spec.component.file);
        Ok(self.host.load(read(&path)?, &rules.limits.compile, Isolation::Shared).await?)
    }
}

/// Returns the URLs in details of OPC UA that have an address in place of a name.
fn addresses(details: &str) -> Vec<(String, SocketAddr)> {
    let details: Value = serde_saphyr::from_str(details).unwrap_or_default();
    let urls = details.pointer("/opcuaDiscoveryMethod/standard/discoveryUrls").and_then(Value::as_array);
    let urls = urls.into_iter().flatten().filter_map(Value::as_str);
    urls.filter_map(|url| Some((url.to_owned(), address(url)?))).collect()
}

fn address(url: &str) -> Option<SocketAddr> {
    let authority = url.strip_prefix("opc.tcp://")?.split('/').next()?;
    let (host, port) = authority.rsplit_once(':')?;
    let address = match host {
        "localhost" => IpAddr::from(Ipv4Addr::LOCALHOST),
        host => host.trim_matches(['[', ']']).parse().ok()?,
    };
    Some(SocketAddr::new(address, port.parse().ok()?))
}

fn is_granted(rules: &HandlerRules, address: SocketAddr) -> bool {
    rules.grants.tcp.iter().any(|destinations| destinations.contain(address))
}

fn not_granted(url: &str, address: SocketAddr) -> String {
    format!(
        "{url} is not among what the handler may reach: add '- {{networks: [{}], ports: [{}]}}' to grants.tcp of the DiscoveryHandler \
         'opcua'; the chart's opcua.discovery.grants replaces all grants, so copy the others into it",
        address.ip(),
        address.port()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_urls_are_those_that_need_no_names() {
        let details = "opcuaDiscoveryMethod: {standard: {discoveryUrls: ['opc.tcp://localhost:50000', 'opc.tcp://plc:4840/', \
                       'opc.tcp://[::1]:4840/x', 'http://1.2.3.4:1/', 'opc.tcp://8.8.8.8:4840']}}";
        let found: Vec<String> = addresses(details).into_iter().map(|(_, address)| address.to_string()).collect();
        assert_eq!(found, ["127.0.0.1:50000", "[::1]:4840", "8.8.8.8:4840"]);
        assert_eq!((addresses("").len(), addresses("a: [").len(), addresses("[1]").len()), (0, 0, 0));
    }
}
