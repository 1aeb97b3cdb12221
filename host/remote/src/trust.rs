//! Trust in remote handlers: who may register, which addresses are dialled, and who may answer there. A handler gets
//! the properties of Configurations, including secrets, and decides which devices containers get.

use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use akri_model::remote::Address;
use akri_model::text::clean;
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use tonic::Status;

use crate::{MAX_MESSAGE, RemoteSettings, SOCKET};

/// Maximum length of the path of a Unix socket (`sun_path`, unix(7)).
const MAX_PATH: usize = 107;

impl RemoteSettings {
    /// Checks that a process of this user may register or serve.
    pub(super) fn check_user(&self, uid: u32) -> Result<(), Status> {
        let own = [0, rustix::process::geteuid().as_raw()];
        if own.contains(&uid) || self.users.contains(&uid) {
            return Ok(());
        }
        let remedy = format!("allow it with --allow-handler-uid {uid}");
        Err(denied(&format!("user id {uid} may not serve discovery handlers; {remedy}")))
    }

    /// Returns the address of a socket in the handler directory. The socket need not exist yet, but its directory must.
    pub(super) fn unix(&self, text: &str) -> Result<Address, Status> {
        let path = Path::new(text);
        let plain = path.components().skip(1).all(|part| matches!(part, Component::Normal(_)));
        let name = path.file_name().filter(|_| path.is_absolute() && plain && text.len() <= MAX_PATH);
        let (Some(name), Some(parent), false) = (name, path.parent(), text.contains(char::is_control)) else {
            return Err(invalid(text, &format!("an absolute path of at most {MAX_PATH} bytes without '.' and '..'")));
        };
        let parent = real(parent)?;
        if !parent.starts_with(real(&self.directory)?) || name == SOCKET {
            return Err(self.outside(text));
        }
        let socket = parent.join(name);
        let socket = socket.to_str().filter(|socket| socket.len() <= MAX_PATH).ok_or_else(|| self.outside(text))?;
        Ok(Address::Unix(socket.to_owned()))
    }

    /// Returns the address in a URL such as `http://10.0.0.7:10000`.
    pub(super) fn network(&self, url: &str) -> Result<Address, Status> {
        let authority = url.strip_prefix("http://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        let address: Option<SocketAddr> = authority.and_then(|authority| authority.parse().ok());
        let address = address.map(|address| SocketAddr::new(address.ip().to_canonical(), address.port()));
        let address = address.filter(|address| address.port() != 0);
        let Some(address) = address else {
            return Err(invalid(url, "'http://ADDRESS:PORT' with an IP address; names and TLS are not supported"));
        };
        self.may_dial(address).map(|()| Address::Network(address))
    }

    /// Checks that a network address may be dialled.
    pub(super) fn may_dial(&self, address: SocketAddr) -> Result<(), Status> {
        let ip: IpAddr = address.ip();
        let is_host = !ip.is_unspecified() && !ip.is_multicast();
        let allowed = is_host && self.networks.iter().any(|network| network.contains(&ip));
        if allowed {
            return Ok(());
        }
        Err(denied(&format!("{address} is not in a network allowed by --allow-network-handlers")))
    }

    /// Opens the socket at a path, if it is a socket and not a link to one elsewhere. Connecting to the open file reaches this
    /// very socket, even if the path is replaced in between.
    pub(super) fn socket(&self, path: &str) -> Result<OwnedFd, Status> {
        if self.unix(path)? != Address::Unix(path.to_owned()) {
            return Err(self.outside(path)); // the directory was replaced, for example by a link
        }
        let failed = |error: Errno| inaccessible(path, error.into());
        // Where a link is followed elsewhere it is found out; so is a directory above that was replaced in between.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let socket = rustix::fs::open(path, flags, Mode::empty()).map_err(failed)?;
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&socket).map_err(failed)?.st_mode);
        if kind != FileType::Socket {
            return Err(denied(&format!("'{path}' is not a socket")));
        }
        let opened = fs::read_link(link_of(&socket)).map_err(|error| inaccessible(path, error))?;
        if opened == Path::new(path) { Ok(socket) } else { Err(self.outside(path)) }
    }

    fn outside(&self, path: &str) -> Status {
        denied(&format!("'{path}' is not in the handler directory '{}'", self.directory.display()))
    }
}

/// Returns a path that leads to an open file, whatever its name.
pub(super) fn link_of(file: &impl AsRawFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
}

fn real(directory: &Path) -> Result<PathBuf, Status> {
    directory.canonicalize().map_err(|error| inaccessible(&directory.display().to_string(), error))
}

fn inaccessible(path: &str, error: io::Error) -> Status {
    denied(&format!("cannot access '{path}': {error}"))
}

fn invalid(text: &str, wanted: &str) -> Status {
    let shown: String = text.chars().take(MAX_PATH).collect();
    Status::invalid_argument(clean(&format!("'{shown}' is not {wanted}"), MAX_MESSAGE))
}

fn denied(message: &str) -> Status {
    Status::permission_denied(clean(message, MAX_MESSAGE))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;
    use std::time::Duration;

    use tonic::Code;

    use super::*;

    fn trust(directory: &Path) -> RemoteSettings {
        let networks = vec!["10.1.0.0/16".parse().unwrap(), "fd00::/8".parse().unwrap()];
        RemoteSettings {
            directory: directory.to_owned(),
            users: vec![7],
            networks,
            paths: Vec::new(),
            trust_paths: false,
            offline_timeout: Duration::ZERO,
        }
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
    fn only_sockets_are_dialled_and_no_links() {
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
        let refusal = |path: &str| dialled(path).unwrap_err().to_string();
        assert!(refusal("link.sock").contains("is not a socket"));
        assert!(refusal("file.sock").contains("is not a socket"));
        assert!(refusal("none.sock").contains("cannot access"));

        // The directory becomes a link: a registered path must not lead elsewhere.
        fs::rename(&inside, root.join("moved")).unwrap();
        symlink(root.join("moved"), &inside).unwrap();
        assert!(refusal("there.sock").contains("is not in the handler directory"));
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
            assert!(trust.network(url).unwrap_err().code() == Code::PermissionDenied, "{url}");
        }
        for url in ["", "10.1.2.3:80", "https://10.1.2.3:80", "http://10.1.2.3", "http://10.1.2.3:0", "http://cam:80"] {
            assert!(trust.network(url).unwrap_err().code() == Code::InvalidArgument, "{url}");
        }
        for url in ["http://a@10.1.2.3:80", "http://10.1.2.3:80/x", "http://10.1.2.3:80?x", "http://10.1.2.3:80//"] {
            assert!(trust.network(url).unwrap_err().code() == Code::InvalidArgument, "{url}");
        }
        let may_dial = |address: &str| trust.may_dial(address.parse().unwrap()).is_ok();
        assert!(may_dial("10.1.0.1:1") && !may_dial("10.2.0.1:1"));
    }

    #[test]
    fn refusal_of_a_user_names_the_flag() {
        let trust = trust(Path::new("/nowhere"));
        assert!(trust.check_user(7).is_ok());
        let expected = "user id 8 may not serve discovery handlers; allow it with --allow-handler-uid 8";
        assert_eq!(trust.check_user(8).unwrap_err().message(), expected);
    }
}
