//! The cache of camera facts, so that a round without changes costs one probe.
//!
//! Failures are retried in the next round, except wrong credentials: they are retried after a change or after five
//! minutes, since cameras lock users out.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::announcement::Camera;
use crate::details::WantedStream;
use crate::inquiry::{Facts, Wanted};

/// Maximum age of facts: a profile may be edited without a restart and a Hello.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(1);

/// Time during which refused credentials are not retried.
const LOCKED_OUT: SignedDuration = SignedDuration::from_mins(5);

/// The cached state of one camera.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The facts.
    pub facts: Facts,
    /// Set if it announced the URL at which it responded.
    pub was_announced: bool,
    /// Set if it required credentials, or other ones.
    pub refused: bool,
    /// The time of the last inquiry, in seconds of Unix time.
    pub asked_at: i64,
    /// The metadata version at that time.
    pub metadata_version: String,
    /// The fingerprint of the credentials used, if any.
    pub credentials: Option<[u8; 8]>,
    /// The requested stream.
    pub stream: Option<WantedStream>,
}

impl Known {
    /// Returns whether another inquiry would yield nothing new.
    pub fn is_current(
        &self,
        camera: &Camera,
        wanted: Wanted<'_>,
        credentials: Option<[u8; 8]>,
        now: Timestamp,
    ) -> bool {
        let age = SignedDuration::from_secs(now.as_second().saturating_sub(self.asked_at));
        let max_age = if self.is_locked_out() { LOCKED_OUT } else { MAX_AGE };
        (SignedDuration::ZERO..max_age).contains(&age)
            && self.is_where_it_was(camera)
            && self.metadata_version == camera.metadata_version
            && self.credentials == credentials
            && (self.is_locked_out() || self.has(wanted, camera))
    }

    /// Returns whether the requested facts were requested before.
    fn has(&self, wanted: Wanted<'_>, camera: &Camera) -> bool {
        (wanted.stream.is_none() || self.stream.as_ref() == wanted.stream)
            && (!wanted.scopes || !camera.scopes.is_empty() || self.facts.scopes.is_some())
    }

    /// Returns whether the camera refused the current credentials.
    pub fn is_locked_out(&self) -> bool {
        self.refused && self.credentials.is_some()
    }

    /// Returns whether the camera still announces the URL at which it responded, or still answers from there if it never
    /// did.
    pub fn is_where_it_was(&self, camera: &Camera) -> bool {
        let answered = camera.answered.iter().filter(|_| !self.was_announced);
        camera.urls.iter().chain(answered).any(|url| url.to_string() == self.facts.url)
    }
}

/// The cached cameras by UUID.
pub type Memory = BTreeMap<String, Known>;

/// Parses the output of [`encode`]; anything invalid is dropped.
pub fn decode(mut bytes: &[u8]) -> Memory {
    let next = || {
        let (entry, rest) = postcard::take_from_bytes::<(String, Known)>(bytes).ok()?;
        bytes = rest;
        Some(entry)
    };
    std::iter::from_fn(next).collect()
}

/// Encodes as many cameras as fit, about 200 bytes each.
pub fn encode(memory: &Memory, max_bytes: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for entry in memory.iter().filter_map(|entry| postcard::to_stdvec(&entry).ok()) {
        if bytes.len() + entry.len() <= max_bytes {
            bytes.extend(entry);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::device_service::Information;
    use crate::service_url::ServiceUrl;

    const URL: &str = "http://192.168.1.5/onvif/device_service";

    fn known() -> Known {
        let information = Information {
            manufacturer: "Acme".into(),
            model: "Dome 3000 IR".into(),
            firmware_version: "V5.5.53 build 180730".into(),
            serial_number: "DS-2CD2042WD-I20160101AAWR".into(),
            hardware_id: "88".into(),
        };
        let facts = Facts {
            url: URL.into(),
            mac: Some("00:1a:2b:3c:4d:5e".into()),
            information,
            stream: Some("rtsp://192.168.1.5:554/Streaming/Channels/101?transportmode=unicast".into()),
            ..Facts::default()
        };
        Known {
            facts,
            asked_at: 1_000_000,
            metadata_version: "10".into(),
            credentials: Some([1; 8]),
            was_announced: true,
            refused: false,
            stream: Some(WantedStream::First),
        }
    }

    #[test]
    fn camera_that_announces_another_url_is_asked_again() {
        let (elsewhere, url) = ("http://10.0.0.7/onvif/device_service", ServiceUrl::parse(URL).unwrap());
        let moved = Camera { urls: vec![ServiceUrl::parse(elsewhere).unwrap()], answered: Some(url), ..camera() };
        assert!(known().is_where_it_was(&camera()));
        assert!(!known().is_where_it_was(&moved), "it announced where it was");
        assert!(Known { was_announced: false, ..known() }.is_where_it_was(&moved), "it never did");
    }

    fn camera() -> Camera {
        let url = ServiceUrl::parse(URL).unwrap();
        Camera { uuid: "a".into(), scopes: vec![], metadata_version: "10".into(), urls: vec![url], answered: None }
    }

    fn memory(cameras: usize) -> Memory {
        (0..cameras).map(|number| (format!("6821dc67-8438-5588-1547-4d134904{number:04}"), known())).collect()
    }

    #[test]
    fn entries_round_trip() {
        let memory = memory(3);
        assert_eq!(decode(&encode(&memory, 1 << 20)), memory);
        assert_eq!(decode(&[]), Memory::new());
        assert_eq!(decode(&[0xff; 40]), Memory::new());
    }

    #[test]
    fn thousand_cameras_fit_into_the_cache() {
        let bytes = encode(&memory(1000), 256 << 10);
        assert_eq!(decode(&bytes).len(), 1000, "{} bytes each", bytes.len() / 1000);
        assert_eq!(decode(&encode(&memory(1000), 1000)).len(), 1000 / (bytes.len() / 1000));
    }

    #[test]
    fn camera_is_queried_again_after_any_change() {
        let wanted = Wanted { scopes: false, stream: Some(&WantedStream::First) };
        let at = |second| Timestamp::from_second(second).unwrap();
        let is_current = |change: fn(&mut Known, &mut Camera)| {
            let (mut known, mut camera) = (known(), camera());
            change(&mut known, &mut camera);
            known.is_current(&camera, wanted, Some([1; 8]), at(1_000_060))
        };
        assert!(is_current(|_, _| {}));
        assert!(!is_current(|known, _| known.asked_at = 1_000_061), "a clock that was set back");
        assert!(!is_current(|known, _| known.asked_at -= 3600));
        assert!(!is_current(|_, camera| camera.metadata_version = "11".into()));
        assert!(!is_current(|known, _| known.credentials = None));
        assert!(!is_current(|known, _| known.stream = Some(WantedStream::Profile("x".into()))));
        assert!(!is_current(|known, _| known.facts.url = "http://192.168.1.6/".into()));
        assert!(!is_current(|known, _| known.credentials = Some([2; 8])));
    }

    #[test]
    fn refused_credentials_are_kept_for_five_minutes() {
        let wanted = Wanted { scopes: true, stream: Some(&WantedStream::First) };
        let is_current = |credentials, after: i64| {
            let known = Known { refused: true, credentials, stream: None, ..known() };
            known.is_current(&camera(), wanted, credentials, Timestamp::from_second(1_000_000 + after).unwrap())
        };
        assert_eq!([0, 299, 300, 3600].map(|after| is_current(Some([1; 8]), after)), [true, true, false, false]);
        assert!(!is_current(None, 0), "without credentials nobody is locked out, and what is wanted is not known");
    }

    #[test]
    fn unwanted_facts_are_not_required() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        let with = |scopes, announced: &[&str]| {
            let camera = Camera { scopes: announced.iter().map(|s| (*s).to_owned()).collect(), ..camera() };
            known().is_current(&camera, Wanted { scopes, stream: None }, Some([1; 8]), now)
        };
        assert!(with(false, &[]));
        assert!(with(true, &["onvif://x"]));
        assert!(!with(true, &[]), "no scopes announced, and none asked for");
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_cause_no_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            decode(&bytes);
        }
    }
}
