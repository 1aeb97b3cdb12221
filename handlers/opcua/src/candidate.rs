//! Selection of candidate servers from the lists of discovery servers.

use std::collections::BTreeMap;

use akri_handler::Filter;

use crate::details::IdentifyBy;
use crate::message::{Application, ApplicationType, Endpoint};
use crate::url::{Host, Url};

/// Maximum number of listed URLs tried per server.
const LISTED: usize = 8;

/// Maximum number of further URLs tried, at the hosts of discovery servers.
const OTHERS: usize = 2;

/// Limit on an application URI, in bytes: it is the device's id.
const MAX_URI: usize = 4096;

/// A server listed by discovery servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The description by the first list, without URLs.
    pub application: Application,
    /// The discovery URLs that list it, by index in the details, ascending.
    pub origins: Vec<usize>,
    /// The entries of these lists.
    entries: Vec<Entry>,
    /// The URL that identifies it, if servers are identified by URL.
    pub url: Option<String>,
}

/// The possible URLs of one entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Entry {
    listed: Vec<Url>,
    others: Vec<Url>,
    /// The discovery URL if it lists nothing else: most likely it is the server's own.
    itself: Option<Url>,
}

/// The list of one discovery server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// The index of its URL in the details.
    pub origin: usize,
    /// Its URL.
    pub url: Url,
    /// The listed applications.
    pub applications: Vec<Application>,
}

/// Maximum number of servers that are named as left out.
const MAX_LEFT_OUT: usize = 64;

/// Returns the selected servers of all lists, each once. An application is identified by its URI, or by URL if it has
/// none or that is wanted. The lists are in ascending order of origin.
pub fn candidates(lists: Vec<List>, names: Option<&Filter<String>>, by: IdentifyBy) -> Vec<Candidate> {
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for List { origin, url, applications } in lists {
        let is_alone = applications.len() == 1;
        for mut application in applications.into_iter().filter(|application| counts(application, names)) {
            let entry = Entry::of(&std::mem::take(&mut application.discovery_urls), &url, is_alone);
            let key = match by {
                IdentifyBy::ApplicationUri => entry.key(&application.uri),
                IdentifyBy::Url => entry.url(),
                IdentifyBy::ListedUrl => entry.key(""),
            };
            let Some(key) = key else { continue };
            let url = (by != IdentifyBy::ApplicationUri).then(|| key.clone());
            let place = *places.entry(key).or_insert_with(|| {
                candidates.push(Candidate { application, origins: Vec::new(), entries: Vec::new(), url });
                candidates.len() - 1
            });
            if let Some(candidate) = candidates.get_mut(place) {
                candidate.add(origin, entry);
            }
        }
    }
    candidates
}

/// Returns the listed servers that the filter leaves out, with a URL of each.
pub fn left_out(lists: &[List], names: Option<&Filter<String>>) -> Vec<String> {
    let all = lists.iter().flat_map(|list| &list.applications);
    let left_out = all.filter(|application| counts(application, None) && !counts(application, names));
    let named = left_out.map(|Application { name, discovery_urls, .. }| match discovery_urls.first() {
        Some(url) => format!("{name} at {url}"),
        None => name.clone(),
    });
    named.take(MAX_LEFT_OUT).collect()
}

/// Returns whether an application is a server that passes the filter; discovery servers and clients are not devices.
fn counts(application: &Application, names: Option<&Filter<String>>) -> bool {
    matches!(application.kind, ApplicationType::Server | ApplicationType::ClientAndServer)
        && names.is_none_or(|names| names.selects(|name| *name == application.name))
        && application.uri.len() <= MAX_URI
}

impl Entry {
    /// Parses the URLs of an entry. URLs of other transports and invalid ones are ignored.
    ///
    /// A server uses `localhost` for its own host, which most likely is that of its discovery server; the same applies
    /// to a name that does not resolve here.
    fn of(texts: &[String], at: &Url, is_alone: bool) -> Self {
        let mut entry = Self { itself: is_alone.then(|| at.clone()), ..Self::default() };
        for url in texts.iter().filter_map(|text| text.parse::<Url>().ok()) {
            let beside = url.at(&at.host);
            if url.host.is_unspecified() || url.host.is_local() && !at.host.is_local() {
                entry.listed.push(beside);
                continue;
            }
            if !matches!(url.host, Host::Address(address) if !address.is_loopback()) {
                entry.others.push(beside);
            }
            entry.listed.push(url);
        }
        entry
    }

    /// Returns the URL that identifies a server: its discovery URL if that lists nothing else, or the first listed one.
    fn url(&self) -> Option<String> {
        self.itself.as_ref().or(self.listed.first()).map(Url::to_string)
    }

    /// Returns the identity of the application: its URI, or its first URL.
    fn key(&self, uri: &str) -> Option<String> {
        if !uri.is_empty() {
            return Some(uri.to_owned());
        }
        self.listed.first().or(self.itself.as_ref()).map(Url::to_string)
    }
}

impl Candidate {
    fn add(&mut self, origin: usize, entry: Entry) {
        if self.origins.last() != Some(&origin) {
            self.origins.push(origin);
        }
        if !self.entries.contains(&entry) {
            self.entries.push(entry);
        }
    }

    /// Returns the URLs to try: the listed ones, the first of each entry before the second of any, so that no list
    /// hides the entries of another. Then the discovery URL of a server that lists itself alone, which may be behind a
    /// forwarded port, and the host of the discovery server with the server's own port.
    pub fn urls(&self) -> Vec<&Url> {
        let most = self.entries.iter().map(|entry| entry.listed.len()).max().unwrap_or_default();
        let listed = (0..most).flat_map(|place| self.entries.iter().filter_map(move |entry| entry.listed.get(place)));
        let itself = self.entries.iter().filter_map(|entry| entry.itself.as_ref());
        let others = itself.chain(self.entries.iter().flat_map(|entry| &entry.others));
        let mut urls = Vec::new();
        add(&mut urls, listed, LISTED);
        let most = urls.len() + OTHERS;
        add(&mut urls, others, most);
        urls
    }

    /// Returns the discovery URLs that list nothing else.
    pub fn itself_at(&self) -> impl Iterator<Item = &Url> {
        self.entries.iter().filter_map(|entry| entry.itself.as_ref())
    }

    /// Returns the discovery URL of the first list if that list holds nothing else.
    pub fn sole_entry_at(&self) -> Option<&Url> {
        self.entries.first().and_then(|entry| entry.itself.as_ref())
    }

    /// Returns the endpoints of this server among those offered at one of its URLs: none if another application
    /// responds, because the entry is stale and the port is reused. At a URL that lists only the server itself all
    /// endpoints are its own: some servers use another URI in endpoints than in the list.
    pub fn own<'e>(&self, endpoints: &'e [Endpoint], at: &Url) -> Vec<&'e Endpoint> {
        let uri = &self.application.uri;
        let is_sure = uri.is_empty() || self.itself_at().any(|url| url == at);
        endpoints.iter().filter(|endpoint| is_sure || endpoint.server.uri == *uri).collect()
    }
}

/// Adds URLs without duplicates up to a limit.
fn add<'u>(urls: &mut Vec<&'u Url>, more: impl Iterator<Item = &'u Url>, most: usize) {
    for url in more {
        if urls.len() < most && !urls.contains(&url) {
            urls.push(url);
        }
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
        candidates(lists, None, IdentifyBy::ApplicationUri).into_iter().map(shown).collect()
    }

    fn entry(uri: &str, origins: &[usize], urls: &[&str]) -> (String, Vec<usize>, Vec<String>) {
        (uri.to_owned(), origins.to_vec(), urls.iter().map(|url| (*url).to_owned()).collect())
    }

    #[test]
    fn only_servers_are_candidates() {
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
    fn application_listed_twice_is_one_server() {
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
    fn servers_of_one_uri_can_be_identified_by_url() {
        let at = |origin: usize, host: &str| {
            let applications = vec![application("urn:sdk:default", &["opc.tcp://localhost:4840"])];
            List { applications, ..list(origin, host, Vec::new()) }
        };
        let lists =
            || vec![at(0, "192.0.2.1"), at(1, "192.0.2.2"), list(2, "lds", vec![application("", &["opc.tcp://a"])])];
        assert_eq!(candidates(lists(), None, IdentifyBy::ApplicationUri).len(), 2);
        let urls = candidates(lists(), None, IdentifyBy::Url).into_iter().map(|candidate| candidate.url.unwrap());
        let expected = ["opc.tcp://192.0.2.1", "opc.tcp://192.0.2.2", "opc.tcp://a"];
        assert_eq!(urls.collect::<Vec<_>>(), expected.map(|url| url.parse::<Url>().unwrap().to_string()));
        let by = |by| {
            let applications = vec![application("urn:a", &["opc.tcp://192.0.2.1:4841/server"])];
            let alone = List { applications, ..list(0, "192.0.2.1:4841", Vec::new()) };
            candidates(vec![alone], None, by).remove(0).url.unwrap()
        };
        let [by_url, by_listed_url] = [IdentifyBy::Url, IdentifyBy::ListedUrl].map(by);
        assert_eq!((&*by_url, &*by_listed_url), ("opc.tcp://192.0.2.1:4841", "opc.tcp://192.0.2.1:4841/server"));
    }

    #[test]
    fn servers_without_uri_are_distinguished_by_url() {
        let at = |url: &str| application("", &[url]);
        let lists = vec![list(
            0,
            "lds",
            vec![at("opc.tcp://192.0.2.1:1"), at("opc.tcp://192.0.2.1:2"), at("opc.tcp://192.0.2.1:1")],
        )];
        assert_eq!(found(lists).len(), 2);
    }

    #[test]
    fn unresolvable_host_is_also_tried_at_the_discovery_server() {
        for (listed, urls) in [
            ("opc.tcp://plc:4841/x", vec!["opc.tcp://plc:4841/x", "opc.tcp://192.0.2.7:4841/x"]),
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
    fn loopback_names_mean_the_discovery_server_machine() {
        for (lds, listed, url) in [
            ("192.0.2.7", "opc.tcp://127.0.0.1:4841", "opc.tcp://192.0.2.7:4841"),
            ("192.0.2.7", "opc.tcp://localhost:4841", "opc.tcp://192.0.2.7:4841"),
            ("192.0.2.7", "opc.tcp://0.0.0.0:4841", "opc.tcp://192.0.2.7:4841"),
            ("lds", "opc.tcp://localhost:4841", "opc.tcp://lds:4841"),
            ("localhost", "opc.tcp://0.0.0.0:4841", "opc.tcp://localhost:4841"),
        ] {
            let lists = vec![list(0, lds, vec![application("urn:a", &[listed])])];
            assert_eq!(found(lists), [entry("urn:a", &[0], &[url])], "{listed} at {lds}");
        }
        let lists = vec![list(0, "127.0.0.1", vec![application("urn:a", &["opc.tcp://localhost:4841"])])];
        assert_eq!(found(lists), [entry("urn:a", &[0], &["opc.tcp://localhost:4841", "opc.tcp://127.0.0.1:4841"])]);
    }

    #[test]
    fn lists_hide_no_entries_of_each_other() {
        let at = |host: usize| format!("opc.tcp://192.0.2.{host}:4841/");
        let stale: Vec<String> = (1..=9).map(at).collect();
        let stale: Vec<&str> = stale.iter().map(String::as_str).collect();
        let lists = vec![
            list(0, "lds0", vec![application("urn:a", &stale)]),
            list(1, "lds1", vec![application("urn:a", &[&at(100)])]),
        ];
        assert_eq!(found(lists)[0].2[..3], [at(1), at(100), at(2)]);
    }

    #[test]
    fn sole_listed_server_may_be_the_responder() {
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
    fn only_opc_tcp_urls_are_tried_up_to_a_bound() {
        let mixed = application("urn:a", &["https://plc:443/", "", "opc.tcp://192.0.2.1:4841", "opc.tcp://plc:x"]);
        let web = application("urn:b", &["opc.wss://plc:443/"]);
        let lists = vec![list(0, "lds", vec![mixed, web, application("urn:c", &[]), application("", &[])])];
        let nowhere = ["urn:b", "urn:c"].map(|uri| entry(uri, &[0], &[]));
        assert_eq!(found(lists)[0], entry("urn:a", &[0], &["opc.tcp://192.0.2.1:4841"]));
        let lists = vec![list(0, "lds", vec![application("urn:b", &["https://a"]), application("urn:c", &[])])];
        assert_eq!(found(lists), nowhere, "to be told of");
        let names: Vec<String> = (0..9).map(|host| format!("opc.tcp://host{host}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let lists = (0..9).map(|n| list(n, &format!("lds{n}"), vec![application("urn:a", &names)])).collect();
        assert_eq!(found(lists)[0].2.len(), LISTED + OTHERS);
    }

    #[test]
    fn application_is_identified_by_its_uri() {
        let endpoint = |uri: &str| Endpoint { server: application(uri, &[]), ..Endpoint::default() };
        let endpoints = [endpoint("urn:a"), endpoint("urn:b"), endpoint("urn:a")];
        let at: Url = "opc.tcp://192.0.2.7:4841/".parse().unwrap();
        for (uri, own) in [("urn:a", 2), ("urn:b", 1), ("urn:c", 0), ("", 3)] {
            let lists = vec![list(0, "lds", vec![application(uri, &["opc.tcp://a"])])];
            assert_eq!(candidates(lists, None, IdentifyBy::ApplicationUri)[0].own(&endpoints, &at).len(), own, "{uri}");
        }
        let applications = vec![application("urn:c", &[])];
        let alone = vec![List { applications, ..list(0, "192.0.2.7:4841/", Vec::new()) }];
        let alone = candidates(alone, None, IdentifyBy::ApplicationUri).remove(0);
        let elsewhere: Url = "opc.tcp://192.0.2.8:4841/".parse().unwrap();
        assert_eq!(alone.own(&endpoints, &at).len(), 3, "it has just listed itself there");
        assert_eq!(alone.own(&endpoints, &elsewhere).len(), 0);
    }
}
