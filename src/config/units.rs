//! Durations and sizes as a config file writes them.

use std::time::Duration;

/// Longer than anything that is meant, short enough to be added to a clock.
pub(super) const LONGEST: Duration = Duration::from_secs(3650 * 86_400);

/// `250ms`, `1.5s`, `5m`, `24h`, `30d`; ten years at most.
pub(crate) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = split(text)?;
    let seconds = match unit {
        "ms" => 0.001,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number * seconds).ok().filter(|d| *d <= LONGEST)
}

/// `256KiB`, `1.5MiB`, `1MB` or bare bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let (number, unit) = split(text)?;
    let bytes = match unit {
        "" | "B" => 1.0,
        "kB" | "KB" => 1e3,
        "MB" => 1e6,
        "GB" => 1e9,
        "KiB" => 1024.0,
        "MiB" => 1024.0 * 1024.0,
        "GiB" => 1024.0 * 1024.0 * 1024.0,
        _ => return None,
    };
    let size = number * bytes;
    // Up to 2^53 a float counts every byte.
    (size.fract() == 0.0 && size <= 9.0e15).then_some(size as u64)
}

/// How `duration` would read it back.
pub(crate) fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)];
    match units.into_iter().find(|(_, unit)| ms >= *unit && ms.is_multiple_of(*unit)) {
        Some((name, unit)) => format!("{}{name}", ms / unit),
        None => format!("{ms}ms"),
    }
}

/// A plain decimal number and the unit behind it.
fn split(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let plain = number.len() <= 20 && !number.starts_with('.') && !number.ends_with('.');
    plain.then(|| number.parse().ok()).flatten().map(|n| (n, unit))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn durations_carry_a_unit() {
        for (text, ms) in [
            ("250ms", 250),
            ("1.5s", 1500),
            ("30s", 30_000),
            ("5m", 300_000),
            ("24h", 86_400_000),
            ("30d", 2_592_000_000),
        ] {
            assert_eq!(duration(text), Some(Duration::from_millis(ms)), "{text}");
            assert_eq!(duration(&show(Duration::from_millis(ms))), Some(Duration::from_millis(ms)), "{text}");
        }
        for text in [
            "",
            "s",
            "30",
            "-1s",
            "+1s",
            "1 s",
            "1e3s",
            "1.s",
            ".5s",
            "1.2.3s",
            "1S",
            "1w",
            "4000d",
            "inf",
            "NaNs",
            "999999999999999999999s",
        ] {
            assert_eq!(duration(text), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_bytes_or_carry_a_unit() {
        for (text, bytes) in [
            ("0", 0),
            ("512", 512),
            ("512B", 512),
            ("256KiB", 262_144),
            ("1.5MiB", 1_572_864),
            ("1MB", 1_000_000),
            ("2GiB", 2_147_483_648),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["", "KiB", "-1", "1.5", "1K", "1 KiB", "1e6", "99999999999999GiB"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
