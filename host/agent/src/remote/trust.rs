//! Whom the agent trusts with what: who may register, which addresses it dials, and who may answer there. Whoever serves a
//! handler gets the properties of Configurations, secrets among them, and says which devices containers are given.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Component, Path, PathBuf};

use akri_model::remote::Address;
use ipnet::IpNet;

use super::SOCKET;

/// Longest path of a Unix socket (`sun_path`, unix(7)).
const MAX_PATH: usize = 107;

/// Why an endpoint is not dialled.
#[derive(Debug, thiserror::Error)]
pub(super) enum Untrusted {
    /// Not a path of a socket.
    #[error("'{0}' is not an absolute path of at most {MAX_PATH} bytes without '.' and '..'")]
    Path(String),
    /// Somewhere else, maybe by way of a link.
    #[error("'{path}' is not in the handler directory '{}'", directory.display())]
    Outside {
        /// Where the handler says it serves.
        path: String,
        /// Where it would have to.
        directory: PathBuf,
    },
    /// Another kind of file.
    #[error("'{0}' is not a socket")]
    NoSocket(String),
    /// The path can't be looked at.
    #[error("cannot look at '{path}': {source}")]
    Io {
        /// The path.
        path: String,
        /// Why not.
        source: io::Error,
    },
    /// Not a URL the agent dials.
    #[error("'{0}' is not 'http://ADDRESS:PORT' with an IP address; names and TLS are not supported")]
    Url(String),
    /// Not in an allowed network.
    #[error("{0} is in no network that is allowed by --allow-network-handlers")]
    Network(SocketAddr),
    /// Another user.
    #[error("user id {0} may not serve discovery handlers; --allow-handler-uid {0} lets it")]
    User(u32),
}

/// The rules of trust.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    /// The handler directory: all sockets are in it.
    pub(super) directory: PathBuf,
    /// Users that may register and serve.
    pub(super) users: BTreeSet<u32>,
    /// Networks that may be dialled.
    pub(super) networks: Vec<IpNet>,
}

impl Trust {
    /// Whether a process of this user may register or serve.
    pub(super) fn user(&self, uid: u32) -> Result<(), Untrusted> {
        if self.users.contains(&uid) { Ok(()) } else { Err(Untrusted::User(uid)) }
    }

    /// The address of a socket in the handler directory. It need not exist yet, but its directory does.
    pub(super) fn unix(&self, text: &str) -> Result<Address, Untrusted> {
        let path = Path::new(text);
        let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
        let name = path.file_name().filter(|_| path.is_absolute() && plain && text.len() <= MAX_PATH);
        let (Some(name), Some(parent), false) = (name, path.parent(), text.contains(char::is_control)) else {
            return Err(Untrusted::Path(text.chars().take(MAX_PATH).collect()));
        };
        let parent = real(parent)?;
        if !parent.starts_with(real(&self.directory)?) || name == SOCKET {
            return Err(self.outside(text));
        }
        let socket = parent.join(name);
        let socket = socket.to_str().filter(|socket| socket.len() <= MAX_PATH).ok_or_else(|| self.outside(text))?;
        Ok(Address::Unix(socket.to_owned()))
    }

    /// The address in a URL such as `http://10.0.0.7:10000`.
    pub(super) fn network(&self, url: &str) -> Result<Address, Untrusted> {
        let authority = url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let address: Option<SocketAddr> = authority.and_then(|authority| authority.parse().ok());
        let address = address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
        let address = address.filter(|address| address.port() != 0);
        let address = address.ok_or_else(|| Untrusted::Url(url.chars().take(MAX_PATH).collect()))?;
        self.may_dial(address).map(|()| Address::Network(address))
    }

    fn may_dial(&self, address: SocketAddr) -> Result<(), Untrusted> {
        let ip: IpAddr = address.ip();
        let is_host = !ip.is_unspecified() && !ip.is_multicast();
        let allowed = is_host && self.networks.iter().any(|network| network.contains(&ip));
        if allowed { Ok(()) } else { Err(Untrusted::Network(address)) }
    }

    /// Whether an address that was registered once may be dialled now.
    pub(super) fn still(&self, address: &Address) -> Result<(), Untrusted> {
        match address {
            Address::Network(address) => self.may_dial(*address),
            Address::Unix(path) => self.unix(path).and_then(|now| {
                // Its directory is not the one it was.
                if now == *address { Ok(()) } else { Err(self.outside(path)) }
            }),
        }
    }

    /// Whether there is a socket now, and not a link to one elsewhere.
    pub(super) fn socket(&self, path: &str) -> Result<(), Untrusted> {
        self.still(&Address::Unix(path.to_owned()))?;
        let metadata = fs::symlink_metadata(path).map_err(|source| Untrusted::Io { path: path.to_owned(), source })?;
        if metadata.file_type().is_socket() { Ok(()) } else { Err(Untrusted::NoSocket(path.to_owned())) }
    }

    fn outside(&self, path: &str) -> Untrusted {
        Untrusted::Outside { path: path.to_owned(), directory: self.directory.clone() }
    }
}

fn real(directory: &Path) -> Result<PathBuf, Untrusted> {
    let failed = |source| Untrusted::Io { path: directory.display().to_string(), source };
    directory.canonicalize().map_err(failed)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn trust(directory: &Path) -> Trust {
        let networks = vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()];
        Trust { directory: directory.to_owned(), users: [0, 7].into(), networks }
    }

    #[test]
    fn only_sockets_in_the_handler_directory_are_addresses() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let (inside, outside) = (root.join("akri"), root.join("elsewhere"));
        fs::create_dir_all(inside.join("deeper")).unwrap();
        fs::create_dir(&outside).unwrap();
        symlink(&outside, inside.join("way-out")).unwrap();
        symlink(inside.join("deeper"), inside.join("way-in")).unwrap();
        let trust = trust(&inside);
        let at = |path: &str| trust.unix(&inside.join(path).display().to_string());
        let is = |path: &str| Address::Unix(inside.join(path).display().to_string());

        assert_eq!(at("cam.sock").unwrap(), is("cam.sock"), "it need not be there yet");
        assert_eq!(at("deeper/cam.sock").unwrap(), is("deeper/cam.sock"));
        assert_eq!(at("way-in/cam.sock").unwrap(), is("deeper/cam.sock"), "each socket has one address");
        for path in ["../elsewhere/cam.sock", "way-out/cam.sock", "missing/cam.sock", SOCKET, &"x".repeat(108)] {
            assert!(at(path).is_err(), "{path}");
        }
        for path in ["", "/", "cam.sock", "./cam.sock", "/etc/passwd", "unix:/cam.sock", "/a\0b", "/a\u{1b}b"] {
            assert!(trust.unix(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn what_is_dialled_is_a_socket_and_no_link() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path().canonicalize().unwrap();
        let inside = root.join("akri");
        fs::create_dir(&inside).unwrap();
        let _there = UnixListener::bind(inside.join("there.sock")).unwrap();
        let _elsewhere = UnixListener::bind(root.join("elsewhere.sock")).unwrap();
        symlink(root.join("elsewhere.sock"), inside.join("link.sock")).unwrap();
        fs::write(inside.join("file.sock"), "").unwrap();
        let trust = trust(&inside);
        let dialled = |name: &str| trust.socket(&inside.join(name).display().to_string());
        assert!(dialled("there.sock").is_ok());
        assert!(matches!(dialled("link.sock"), Err(Untrusted::NoSocket(_))));
        assert!(matches!(dialled("file.sock"), Err(Untrusted::NoSocket(_))));
        assert!(matches!(dialled("none.sock"), Err(Untrusted::Io { .. })));

        // The directory becomes a link to another one: what was registered in it is not what is there now.
        fs::rename(&inside, root.join("moved")).unwrap();
        symlink(root.join("moved"), &inside).unwrap();
        assert!(matches!(dialled("there.sock"), Err(Untrusted::Outside { .. })));
    }

    #[test]
    fn only_addresses_in_allowed_networks_are_dialled() {
        let trust = trust(Path::new("/nowhere"));
        let network = |address: &str| Address::Network(address.parse().unwrap());
        for (url, address) in [
            ("http://10.1.2.3:10000", "10.1.2.3:10000"),
            ("http://10.1.2.3:10000/", "10.1.2.3:10000"),
            ("http://[fd00::1]:80", "[fd00::1]:80"),
            ("http://[::ffff:10.1.2.3]:80", "10.1.2.3:80"),
        ] {
            assert_eq!(trust.network(url).unwrap(), network(address), "{url}");
        }
        for url in ["http://10.2.0.1:80", "http://127.0.0.1:80", "http://[::ffff:127.0.0.1]:80", "http://0.0.0.0:80"] {
            assert!(matches!(trust.network(url), Err(Untrusted::Network(_))), "{url}");
        }
        for url in ["", "10.1.2.3:80", "https://10.1.2.3:80", "http://10.1.2.3", "http://10.1.2.3:0", "http://cam:80"] {
            assert!(matches!(trust.network(url), Err(Untrusted::Url(_))), "{url}");
        }
        for url in ["http://a@10.1.2.3:80", "http://10.1.2.3:80/x", "http://10.1.2.3:80?x", "http://10.1.2.3:80//"] {
            assert!(matches!(trust.network(url), Err(Untrusted::Url(_))), "{url}");
        }
        assert!(trust.still(&network("10.1.0.1:1")).is_ok() && trust.still(&network("10.2.0.1:1")).is_err());
    }

    #[test]
    fn a_user_that_is_not_named_is_told_how_to_be() {
        let trust = trust(Path::new("/nowhere"));
        assert!(trust.user(7).is_ok());
        let told = "user id 8 may not serve discovery handlers; --allow-handler-uid 8 lets it";
        assert_eq!(trust.user(8).unwrap_err().to_string(), told);
    }
}
