//! The two formats of uevent messages: the kernel's text, and udevd's, sent after its rules have run.
//!
//! The kernel's is `add@/devices/...`, then `KEY=value` fields, each ended by a zero byte (`lib/kobject_uevent.c`,
//! `Documentation/core-api/kobject.rst`). udevd puts a binary header before the same fields (systemd,
//! `src/libsystemd/sd-device/device-monitor.c`).

/// The prefix of udevd's messages.
const PREFIX: &[u8] = b"libudev\0";
/// The magic number after the prefix, in network byte order.
const MAGIC: [u8; 4] = 0xfeed_cafe_u32.to_be_bytes();
/// Positions in the header of the offset and length of the fields.
const FIELDS_OFFSET: usize = 16;
const FIELDS_LENGTH: usize = 20;

/// Maximum length of an action or a subsystem name; Linux has none of half this length.
const NAME: usize = 64;

/// An event. It says which device changed; sysfs and udev's database say how the device is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Uevent<'a> {
    /// `add`, `remove`, `change`, `move`, `online`, `offline`, `bind` or `unbind`.
    pub(crate) action: &'a str,
    /// The device's path without `/sys`.
    pub(crate) devpath: &'a str,
    /// The subsystem, 1 to 64 bytes.
    pub(crate) subsystem: &'a str,
}

/// The reason why a message is invalid.
pub(crate) type Malformed = &'static str;

const NO_HEADER: Malformed = "a message of udevd has another header than libudev's";
const OUT_OF_BOUNDS: Malformed = "the fields of a udevd message are outside of the message";

/// Parses a udevd message.
pub(crate) fn from_udevd(message: &[u8]) -> Result<Uevent<'_>, Malformed> {
    let rest = message.strip_prefix(PREFIX).and_then(|rest| rest.strip_prefix(&MAGIC));
    if rest.is_none() {
        return Err(NO_HEADER);
    }
    let (offset, length) = (number(message, FIELDS_OFFSET)?, number(message, FIELDS_LENGTH)?);
    let end = offset.checked_add(length).ok_or(OUT_OF_BOUNDS)?;
    from_fields(message.get(offset..end).ok_or(OUT_OF_BOUNDS)?)
}

/// Returns a number of the header, in native byte order.
fn number(message: &[u8], at: usize) -> Result<usize, Malformed> {
    let bytes = message.get(at..).and_then(|rest| rest.first_chunk()).ok_or(NO_HEADER)?;
    usize::try_from(u32::from_ne_bytes(*bytes)).map_err(|_| OUT_OF_BOUNDS)
}

/// Parses a kernel message, or the fields of one of udevd. The title of the former is no field.
pub(crate) fn from_fields(fields: &[u8]) -> Result<Uevent<'_>, Malformed> {
    let [mut action, mut devpath, mut subsystem] = [None; 3];
    for field in fields.split(|byte| *byte == 0) {
        let field_of = |key: &[u8]| field.strip_prefix(key);
        action = action.or(field_of(b"ACTION="));
        devpath = devpath.or(field_of(b"DEVPATH="));
        subsystem = subsystem.or(field_of(b"SUBSYSTEM="));
    }
    Ok(Uevent {
        action: text(action, NAME).ok_or("the ACTION of a uevent is missing, not text, or too long")?,
        devpath: text(devpath, fields.len()).ok_or("the DEVPATH of a uevent is missing, or not text")?,
        subsystem: text(subsystem, NAME).ok_or("the SUBSYSTEM of a uevent is missing, not text, or too long")?,
    })
}

fn text(value: Option<&[u8]>, longest: usize) -> Option<&str> {
    let text = value.and_then(|value| str::from_utf8(value).ok())?;
    Some(text).filter(|text| !text.is_empty() && text.len() <= longest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FIELDS: &[u8] = b"ACTION=add\0DEVPATH=/devices/virtual/tty/tty1\0SUBSYSTEM=tty\0MAJOR=4\0SEQNUM=7\0";

    fn kernel(fields: &[u8]) -> Vec<u8> {
        [b"add@/devices/virtual/tty/tty1\0", fields].concat()
    }

    /// Builds a message as udevd does: prefix, magic, three lengths, four filter numbers.
    fn udevd(offset: u32, length: u32, fields: &[u8]) -> Vec<u8> {
        let mut message = [PREFIX, &MAGIC].concat();
        for number in [40, offset, length, 0, 0, 0, 0] {
            message.extend(number.to_ne_bytes());
        }
        message.extend(fields);
        message
    }

    fn good_udevd() -> Vec<u8> {
        udevd(40, u32::try_from(FIELDS.len()).unwrap(), FIELDS)
    }

    #[test]
    fn both_formats_parse_to_the_same_event() {
        let event = Uevent { action: "add", devpath: "/devices/virtual/tty/tty1", subsystem: "tty" };
        assert_eq!(from_fields(&kernel(FIELDS)), Ok(event));
        assert_eq!(from_udevd(&good_udevd()), Ok(event));
    }

    #[test]
    fn first_duplicate_field_wins_and_other_fields_are_ignored() {
        let fields = b"ID=\xff\xfe\0SUBSYSTEM=a\0SUBSYSTEM=b\0\0=\0ACTION=x\0DEVPATH=/y\0NOVALUE";
        assert_eq!(from_fields(&kernel(fields)), Ok(Uevent { action: "x", devpath: "/y", subsystem: "a" }));
    }

    #[test]
    fn incomplete_kernel_message_is_refused() {
        let long = [b"ACTION=add\0DEVPATH=/a\0SUBSYSTEM=".as_slice(), &[b'x'; 65]].concat();
        for (message, why) in [
            (&b""[..], "ACTION"),
            (b"add@/devices", "ACTION"),
            (b"add@/a\0", "ACTION"),
            (b"add@/a\0ACTION=add\0SUBSYSTEM=tty\0", "DEVPATH"),
            (b"add@/a\0ACTION=add\0DEVPATH=/a\0", "SUBSYSTEM"),
            (b"add@/a\0ACTION=add\0DEVPATH=/a\0SUBSYSTEM=\0", "SUBSYSTEM"),
            (b"add@/a\0ACTION=add\0DEVPATH=/\xff\0SUBSYSTEM=tty\0", "DEVPATH"),
            (&kernel(&long), "SUBSYSTEM"),
        ] {
            let error = from_fields(message).unwrap_err();
            assert!(error.contains(why), "{error}: {:?}", String::from_utf8_lossy(message));
        }
    }

    #[test]
    fn udevd_message_with_an_invalid_header_is_refused() {
        let fields = u32::try_from(FIELDS.len()).unwrap();
        for (message, why) in [
            (kernel(FIELDS), NO_HEADER),
            (good_udevd()[..23].to_vec(), NO_HEADER),
            ([PREFIX, &[0; 40]].concat(), NO_HEADER),
            (udevd(41, fields, FIELDS), OUT_OF_BOUNDS),
            (udevd(u32::MAX, u32::MAX, FIELDS), OUT_OF_BOUNDS),
            (udevd(40, u32::MAX, FIELDS), OUT_OF_BOUNDS),
            (udevd(40, 0, FIELDS), "ACTION"),
        ] {
            assert!(from_udevd(&message).unwrap_err().contains(why), "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_messages_cause_no_panic(message in prop::collection::vec(any::<u8>(), 0..512)) {
            let _ = from_fields(&message);
            let _ = from_udevd(&message);
        }

        #[test]
        fn mutated_message_gives_an_event_or_an_error(
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            length in any::<prop::sample::Index>(),
        ) {
            for mut message in [kernel(FIELDS), good_udevd()] {
                for (index, byte) in &damage {
                    let at = index.index(message.len());
                    message[at] = *byte;
                }
                message.truncate(length.index(message.len() + 1));
                for event in [from_fields(&message), from_udevd(&message)].into_iter().flatten() {
                    prop_assert!(!event.subsystem.is_empty() && event.subsystem.len() <= NAME);
                }
            }
        }
    }
}
