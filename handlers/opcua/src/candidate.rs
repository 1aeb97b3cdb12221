//! From what discovery servers list to the servers that have to show that they are there.

use std::collections::BTreeMap;

use crate::details::NameFilter;
use crate::message::{Application, ApplicationType, Endpoint};
use crate::url::Url;

/// How many of the URLs that it is listed with a server is asked by.
const LISTED: usize = 3;

/// How many others it is asked by: at the machine of a discovery server.
const OTHERS: usize = 2;

/// The longest application URI in bytes: it is the device's id.
const MAX_URI: usize = 4096;

/// A server that discovery servers list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// As the first of them describes it, but for its URLs.
    pub application: Application,
    /// The discovery URLs that list it, by their place in the details, in ascending order.
    pub origins: Vec<usize>,
    listed: Vec<Url>,
    others: Vec<Url>,
}

/// What one discovery server lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The place of its URL in the details.
    pub origin: usize,
    /// Its URL.
    pub url: Url,
    /// What it knows.
    pub applications: Vec<Application>,
}

/// The servers in the lists that count, each once: one application is one server, whoever lists it and by whatever URLs.
/// Those without an application URI are told apart by URL. The lists are in ascending order of origin.
pub fn candidates(lists: Vec<List>, names: &NameFilter) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for List { origin, url, applications } in lists {
        let is_alone = applications.len() == 1;
        for mut application in applications.into_iter().filter(|application| counts(application, names)) {
            let listed = urls(&std::mem::take(&mut application.discovery_urls));
            let Some(first) = listed.first() else { continue };
            let key = if application.uri.is_empty() { first.to_string() } else { application.uri.clone() };
            let place = *places.entry(key).or_insert_with(|| {
                let (origins, listed, others) = (Vec::new(), Vec::new(), Vec::new());
                candidates.push(Candidate { application, origins, listed, others });
                candidates.len() - 1
            });
            if let Some(candidate) = candidates.get_mut(place) {
                candidate.add(origin, listed, &url, is_alone);
            }
        }
    }
    candidates
}

/// Discovery servers and clients are no devices.
fn counts(application: &Application, names: &NameFilter) -> bool {
    matches!(application.kind, ApplicationType::Server | ApplicationType::ClientAndServer)
        && names.lets(&application.name)
        && application.uri.len() <= MAX_URI
}

/// The URLs of opc.tcp endpoints; servers list those of HTTPS and WebSockets beside them.
fn urls(texts: &[String]) -> Vec<Url> {
    texts.iter().filter_map(|text| text.parse().ok()).collect()
}

impl Candidate {
    /// Adds an entry of the discovery server at a URL. If that one lists nothing else, it is most likely the server
    /// itself, maybe behind a port that it does not know of.
    fn add(&mut self, origin: usize, listed: Vec<Url>, at: &Url, is_alone: bool) {
        if self.origins.last() != Some(&origin) {
            self.origins.push(origin);
        }
        if is_alone {
            add_once(&mut self.others, at.clone(), OTHERS);
        }
        for url in listed {
            if url.host.is_relative() {
                add_once(&mut self.others, url.at(&at.host), OTHERS);
            }
            add_once(&mut self.listed, url, LISTED);
        }
    }

    /// Where it may be: the URLs it is listed with, then, for those whose host means nothing here or something else, the
    /// machine of the discovery server with the server's own port. Most servers that say `localhost` or a name without
    /// a DNS entry run beside their discovery server.
    pub fn urls(&self) -> Vec<&Url> {
        let others = self.others.iter().filter(|url| !self.listed.contains(url));
        self.listed.iter().chain(others).collect()
    }

    /// The endpoints that are its own, of those that are offered at one of its URLs. None are if another application
    /// answers there, as when the entry is stale and the port is used anew.
    pub fn own<'e>(&self, endpoints: &'e [Endpoint]) -> Vec<&'e Endpoint> {
        let uri = &self.application.uri;
        endpoints.iter().filter(|endpoint| uri.is_empty() || endpoint.server.uri == *uri).collect()
    }
}

fn add_once(urls: &mut Vec<Url>, url: Url, most: usize) {
    if urls.len() < most && !urls.contains(&url) {
        urls.push(url);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn application(uri: &str, urls: &[&str]) -> Application {
        let discovery_urls = urls.iter().map(|url| (*url).to_owned()).collect();
        Application { uri: uri.into(), name: format!("name of {uri}"), discovery_urls, ..Application::default() }
    }

    /// A discovery server that also lists itself.
    fn list(origin: usize, host: &str, mut applications: Vec<Application>) -> List {
        applications.push(Application { kind: ApplicationType::DiscoveryServer, ..Application::default() });
        List { origin, url: format!("opc.tcp://{host}").parse().unwrap(), applications }
    }

    fn found(lists: Vec<List>) -> Vec<(String, Vec<usize>, Vec<String>)> {
        let shown = |c: Candidate| {
            let urls = c.urls().into_iter().map(Url::to_string).collect();
            (c.application.uri.clone(), c.origins, urls)
        };
        candidates(lists, &NameFilter::default()).into_iter().map(shown).collect()
    }

    fn entry(uri: &str, origins: &[usize], urls: &[&str]) -> (String, Vec<usize>, Vec<String>) {
        (uri.to_owned(), origins.to_vec(), urls.iter().map(|url| (*url).to_owned()).collect())
    }

    #[test]
    fn servers_count_and_what_only_knows_or_uses_them_does_not() {
        let kinds = [
            (ApplicationType::Server, true),
            (ApplicationType::ClientAndServer, true),
            (ApplicationType::Client, false),
            (ApplicationType::DiscoveryServer, false),
            (ApplicationType::Other(4), false),
        ];
        for (kind, counts) in kinds {
            let application = Application { kind, ..application("urn:a", &["opc.tcp://192.0.2.1:4841"]) };
            assert_eq!(found(vec![list(0, "lds", vec![application])]).len(), usize::from(counts), "{kind:?}");
        }
    }

    #[test]
    fn one_application_is_one_server_whoever_lists_it() {
        let a = || application("urn:a", &["opc.tcp://192.0.2.1:4841/"]);
        let b = application("urn:b", &["opc.tcp://192.0.2.1:4842/"]);
        let moved = application("urn:a", &["opc.tcp://192.0.2.9:4841/"]);
        let lists = vec![list(0, "lds0", vec![a(), a()]), list(2, "lds2", vec![b, moved])];
        let urls = ["opc.tcp://192.0.2.1:4841/", "opc.tcp://192.0.2.9:4841/"];
        assert_eq!(
            found(lists),
            [entry("urn:a", &[0, 2], &urls), entry("urn:b", &[2], &["opc.tcp://192.0.2.1:4842/"])]
        );
    }

    #[test]
    fn without_a_uri_the_url_tells_servers_apart() {
        let at = |url: &str| application("", &[url]);
        let lists = vec![list(
            0,
            "lds",
            vec![at("opc.tcp://192.0.2.1:1"), at("opc.tcp://192.0.2.1:2"), at("opc.tcp://192.0.2.1:1")],
        )];
        assert_eq!(found(lists).len(), 2);
    }

    #[test]
    fn what_is_no_address_is_also_tried_beside_the_discovery_server_with_its_own_port() {
        for (listed, urls) in [
            ("opc.tcp://plc:4841/x", vec!["opc.tcp://plc:4841/x", "opc.tcp://192.0.2.7:4841/x"]),
            ("opc.tcp://127.0.0.1:4841", vec!["opc.tcp://127.0.0.1:4841", "opc.tcp://192.0.2.7:4841"]),
            ("opc.tcp://192.0.2.1:4841", vec!["opc.tcp://192.0.2.1:4841"]),
            ("opc.tcp://192.0.2.7:4841", vec!["opc.tcp://192.0.2.7:4841"]),
        ] {
            let lists = vec![list(0, "192.0.2.7", vec![application("urn:a", &[listed])])];
            assert_eq!(found(lists), [entry("urn:a", &[0], &urls)]);
        }
        let beside = vec![list(0, "plc", vec![application("urn:a", &["opc.tcp://plc:4841"])])];
        assert_eq!(found(beside), [entry("urn:a", &[0], &["opc.tcp://plc:4841"])], "each URL once");
    }

    #[test]
    fn who_lists_one_server_alone_may_be_that_server() {
        let alone = |url: &str| {
            let applications = vec![application("urn:a", &[url])];
            found(vec![List { applications, ..list(0, "192.0.2.7:14841/x", Vec::new()) }])
        };
        let behind = "opc.tcp://192.0.2.7:14841/x";
        let inside = "opc.tcp://172.17.0.2:4841/";
        assert_eq!(alone(inside), [entry("urn:a", &[0], &[inside, behind])]);
        let named = ["opc.tcp://plc:4841/", behind, "opc.tcp://192.0.2.7:4841/"];
        assert_eq!(alone(named[0]), [entry("urn:a", &[0], &named)]);
        assert_eq!(alone(behind), [entry("urn:a", &[0], &[behind])]);
    }

    #[test]
    fn only_opc_tcp_is_spoken_and_only_some_urls_are_tried() {
        let mixed = application("urn:a", &["https://plc:443/", "", "opc.tcp://192.0.2.1:4841", "opc.tcp://plc:x"]);
        let web = application("urn:b", &["opc.wss://plc:443/"]);
        let lists = vec![list(0, "lds", vec![mixed, web, application("urn:c", &[])])];
        assert_eq!(found(lists), [entry("urn:a", &[0], &["opc.tcp://192.0.2.1:4841"])]);
        let names: Vec<String> = (0..9).map(|host| format!("opc.tcp://host{host}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lists = (0..9).map(|n| list(n, &format!("lds{n}"), vec![application("urn:a", &names)])).collect();
        assert_eq!(found(lists)[0].2.len(), LISTED + OTHERS);
    }

    #[test]
    fn an_application_is_known_by_its_uri() {
        let endpoint = |uri: &str| Endpoint { server: application(uri, &[]), ..Endpoint::default() };
        let endpoints = [endpoint("urn:a"), endpoint("urn:b"), endpoint("urn:a")];
        for (uri, own) in [("urn:a", 2), ("urn:b", 1), ("urn:c", 0), ("", 3)] {
            let lists = vec![list(0, "lds", vec![application(uri, &["opc.tcp://a"])])];
            assert_eq!(candidates(lists, &NameFilter::default())[0].own(&endpoints).len(), own, "{uri}");
        }
    }
}
