//! Quantities that people write: `90s`, `5m`, `1h30m`; `64Mi`.

use std::time::Duration;

use jiff::SignedDuration;

/// Reads a duration as Go and Kubernetes write it (`metav1.Duration`).
///
/// # Errors
/// If it is none, or a negative one.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let invalid = || format!("'{text}' is not a duration; write for example 30s, 5m or 1h30m");
    let parsed: SignedDuration = text.trim().parse().map_err(|_| invalid())?;
    Duration::try_from(parsed).map_err(|_| invalid())
}

/// Reads an amount of memory in the binary units of Kubernetes quantities, as bytes.
///
/// # Errors
/// If it is none.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let invalid = || format!("'{text}' is not an amount of memory; write for example 64Mi or 1Gi");
    let units = [("Ki", 10), ("Mi", 20), ("Gi", 30)];
    let unit = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (digits, shift) = unit.unwrap_or((text, 0));
    let number: Option<u64> = digits.parse().ok().filter(|_| digits.bytes().all(|b| b.is_ascii_digit()));
    number.and_then(|n| n.checked_mul(1 << shift)).ok_or_else(invalid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_kubernetes_writes_them() {
        for (text, seconds) in [("30s", 30), ("5m", 300), ("1h30m", 5400), ("5m0s", 300), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_secs(seconds)), "{text}");
        }
        for text in ["", "5", "-5s", "5 parsecs", "99999999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn memory_is_read_in_binary_units() {
        for (text, bytes) in [("64Mi", 64 << 20), ("1Gi", 1 << 30), ("512", 512), ("4Ki", 4096)] {
            assert_eq!(parse_memory(text), Ok(bytes), "{text}");
        }
        for text in ["", "Mi", "-1Mi", "1.5Mi", "64MB", "+1", "99999999999999999999Gi", "18446744073709551615Gi"] {
            assert!(parse_memory(text).is_err(), "{text}");
        }
    }
}
