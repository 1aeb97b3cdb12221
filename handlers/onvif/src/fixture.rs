//! Simulated cameras for unit tests, without a network.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::{pending, poll_fn};
use std::task::Poll;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use jiff::{SignedDuration, Timestamp};
use sha1::{Digest, Sha1};

use crate::credentials::Credentials;
use crate::session::{Post, Reply, Transport, TransportError};
use crate::soap;
use crate::xml::{self, Element};

/// The authentication a camera requires.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Wants {
    #[default]
    Nothing,
    /// A WS-UsernameToken created within five seconds by its own clock.
    Token,
    /// A token even for the time; the clock is in the `Date` header.
    TokenAlways,
    /// HTTP digest.
    HttpDigest,
    /// HTTP basic, which must not be used.
    HttpBasic,
}

/// The behaviour of a camera.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Behaviour {
    #[default]
    Good,
    /// It refuses connections.
    Off,
    /// It accepts connections and does not respond.
    Mute,
    /// It changes its behaviour after the first request.
    OffLater,
    MuteLater,
    /// It is a web server and not a camera.
    Html,
}

/// The password of every camera that requires one; the user is `admin`.
pub(crate) const PASSWORD: &str = "s3cret";

pub(crate) fn credentials(password: &str) -> Credentials {
    Credentials { username: "admin".to_owned(), password: password.to_owned(), holder: String::new() }
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FakeCamera {
    pub(crate) wants: Wants,
    pub(crate) behaviour: Behaviour,
    /// The difference of its clock from ours, in seconds.
    pub(crate) ahead: i64,
    /// XML responses by request.
    pub(crate) answers: BTreeMap<&'static str, String>,
}

impl FakeCamera {
    /// Creates a camera with a MAC address and a model.
    pub(crate) fn with_mac(mac: &str) -> Self {
        let interfaces = format!(
            "<GetNetworkInterfacesResponse><NetworkInterfaces><Info><HwAddress>{mac}</HwAddress></Info>\
            </NetworkInterfaces>\
             </GetNetworkInterfacesResponse>"
        );
        let information = "<GetDeviceInformationResponse><Model>Dome</Model></GetDeviceInformationResponse>";
        let answers = [("GetNetworkInterfaces", interfaces), ("GetDeviceInformation", information.to_owned())];
        Self { answers: answers.into(), ..Self::default() }
    }

    /// Adds a media service at `url` with two profiles.
    pub(crate) fn with_media(mut self, url: &str) -> Self {
        self.answers.insert(
            "GetServices",
            format!(
                "<GetServicesResponse><Service><Namespace>http://www.onvif.org/ver10/media/wsdl</Namespace>\
                 <XAddr>{url}</XAddr></Service></GetServicesResponse>"
            ),
        );
        let profiles =
            ["p0", "p1"].map(|token| format!("<Profiles token='{token}'><Name>name of {token}</Name></Profiles>"));
        self.answers.insert("GetProfiles", format!("<GetProfilesResponse>{}</GetProfilesResponse>", profiles.concat()));
        self
    }

    fn answer(&self, request: &Element, now: Timestamp) -> Option<String> {
        if let Some(answer) = self.answers.get(request.name.as_str()) {
            return Some(answer.clone());
        }
        match request.name.as_str() {
            "GetSystemDateAndTime" => {
                let time = now.to_zoned(jiff::tz::TimeZone::UTC);
                Some(format!(
                    "<GetSystemDateAndTimeResponse><SystemDateAndTime><UTCDateTime><Date><Year>{}</Year>\
                    <Month>{}</Month>\
                     <Day>{}</Day></Date><Time><Hour>{}</Hour><Minute>{}</Minute><Second>{}</Second></Time>\
                     </UTCDateTime>\
                     </SystemDateAndTime></GetSystemDateAndTimeResponse>",
                    time.year(),
                    time.month(),
                    time.day(),
                    time.hour(),
                    time.minute(),
                    time.second()
                ))
            }
            "GetStreamUri" => Some(format!(
                "<GetStreamUriResponse><MediaUri><Uri>rtsp://admin:{PASSWORD}@10.0.0.9:554/{}</Uri></MediaUri>\
                </GetStreamUriResponse>",
                request.text_at(&["ProfileToken"])?
            )),
            _ => None,
        }
    }

    fn trusts(&self, envelope: &Element, post: &Post<'_>, now: Timestamp) -> bool {
        match self.wants {
            Wants::Nothing => true,
            Wants::Token | Wants::TokenAlways => is_signed(envelope, now).unwrap_or_default(),
            Wants::HttpDigest => {
                let answer = post.authorization.as_deref().unwrap_or_default();
                envelope.at(&["Header", "Security"]).is_none() && is_digest(answer, post.url.path())
            }
            Wants::HttpBasic => post.authorization.is_some(),
        }
    }
}

fn is_signed(envelope: &Element, now: Timestamp) -> Option<bool> {
    let token = |name| envelope.text_at(&["Header", "Security", "UsernameToken", name]);
    let created: Timestamp = token("Created")?.parse().ok()?;
    let nonce = BASE64_STANDARD.decode(token("Nonce")?).ok()?;
    let digest = Sha1::digest([&nonce[..], token("Created")?.as_bytes(), PASSWORD.as_bytes()].concat());
    let is_fresh = created.duration_since(now).abs() < SignedDuration::from_secs(5);
    Some(is_fresh && token("Username")? == "admin" && token("Password")? == BASE64_STANDARD.encode(digest))
}

/// Verifies a digest with the client's nonce.
fn is_digest(answer: &str, path: &str) -> bool {
    let field = |name: &str| answer.split_once(&format!("{name}=\""))?.1.split('"').next();
    let (Some(cnonce), Some(response)) = (field("cnonce"), field("response")) else { return false };
    let challenges = http_auth::parse_challenges(CHALLENGE).unwrap();
    let mut expected = http_auth::DigestClient::try_from(&challenges[0]).unwrap();
    let credentials =
        http_auth::PasswordParams { username: "admin", password: PASSWORD, uri: path, method: "POST", body: None };
    // The count increases with each request; a camera may ignore it.
    (0..9).any(|_| expected.respond_with_testing_cnonce(&credentials, cnonce).unwrap().contains(response))
}

const CHALLENGE: &str = r#"Digest realm="camera", nonce="4f1c", qop="auth", algorithm=MD5"#;

/// The cameras on the network, by the URL of their device service.
pub(crate) struct Site {
    pub(crate) cameras: RefCell<BTreeMap<String, FakeCamera>>,
    /// All requests, as `<url> <name>`.
    pub(crate) requests: RefCell<Vec<String>>,
    pub(crate) now: Cell<Timestamp>,
}

impl Site {
    pub(crate) fn new(cameras: impl IntoIterator<Item = (&'static str, FakeCamera)>) -> Self {
        let cameras = cameras.into_iter().map(|(url, camera)| (url.to_owned(), camera)).collect();
        let now = Cell::new("2024-05-06T07:08:09Z".parse().unwrap());
        Self { cameras: RefCell::new(cameras), requests: RefCell::default(), now }
    }

    /// Returns the requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        self.requests.take()
    }

    fn reply(&self, post: &Post<'_>) -> Option<Reply> {
        let url = post.url.to_string();
        let envelope = xml::parse(post.message.as_bytes()).unwrap();
        let request = envelope.child("Body").unwrap().children.first().unwrap().clone();
        self.requests.borrow_mut().push(format!("{url} {}", request.name));
        let cameras = self.cameras.borrow();
        let camera = cameras.get(&url)?;
        let now = self.now.get() + SignedDuration::from_secs(camera.ahead);
        let is_first = request.name == "GetSystemDateAndTime";
        let is_free = is_first && camera.wants != Wants::TokenAlways;
        let date = Some(jiff::fmt::rfc2822::to_string(&now.to_zoned(jiff::tz::TimeZone::UTC)).unwrap());
        let reply = |status, body: &str| {
            let challenge = (status == 401).then(|| match camera.wants {
                Wants::HttpDigest => CHALLENGE.to_owned(),
                _ => r#"Basic realm="camera""#.to_owned(),
            });
            let message = soap::envelope("", body).into_bytes();
            Some(Reply { status, challenge, date: date.clone(), message })
        };
        match camera.behaviour {
            Behaviour::Off => None,
            Behaviour::OffLater if !is_first => None,
            Behaviour::Html => Some(Reply { status: 200, message: b"<html><body>Hello".to_vec(), ..Reply::default() }),
            _ if !is_free && !camera.trusts(&envelope, post, now) => match camera.wants {
                Wants::HttpDigest | Wants::HttpBasic => reply(401, ""),
                _ => reply(400, "<s:Fault><s:Code><s:Value>ter:NotAuthorized</s:Value></s:Code></s:Fault>"),
            },
            _ => match camera.answer(&request, now) {
                Some(body) => reply(200, &body),
                None => reply(500, "<s:Fault><s:Reason><s:Text>not implemented</s:Text></s:Reason></s:Fault>"),
            },
        }
    }

    fn is_mute(&self, post: &Post<'_>) -> bool {
        let behaviour = self.cameras.borrow().get(&post.url.to_string()).map(|camera| camera.behaviour);
        behaviour == Some(Behaviour::Mute)
            || behaviour == Some(Behaviour::MuteLater) && !post.message.contains("GetSystemDateAndTime")
    }
}

impl Transport for Site {
    async fn post(&self, post: Post<'_>) -> Result<Reply, TransportError> {
        if self.is_mute(&post) {
            pending::<()>().await;
        }
        self.reply(&post).ok_or_else(|| TransportError::Failed("connection refused".to_owned()))
    }

    /// Advances the clock when nothing else runs: a second is a number of executor turns.
    async fn sleep(&self, time: Duration) {
        let mut polls = time.as_secs() * 100;
        poll_fn(|context| {
            polls = polls.saturating_sub(1);
            context.waker().wake_by_ref();
            if polls == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn now(&self) -> Timestamp {
        self.now.get()
    }

    fn nonce(&self) -> [u8; 16] {
        [7; 16]
    }
}
