//! Sizes and times as people read them.

use std::time::Duration;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A size in binary units, said so: `11.72 GiB`, `410.2 MiB`, `3.0 KiB`, `512 B`.
pub fn bytes(bytes: u64) -> String {
    let of = |unit: u64| bytes as f64 / unit as f64;
    match bytes {
        GIB.. => format!("{:.2} GiB", of(GIB)),
        MIB.. => format!("{:.1} MiB", of(MIB)),
        KIB.. => format!("{:.1} KiB", of(KIB)),
        _ => format!("{bytes} B"),
    }
}

/// What is counted in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Things {
    Rows,
    Sequences,
    Tokens,
}

/// `1 sequence`, `2 sequences`.
pub fn counted(count: u64, what: Things) -> String {
    match (what, count) {
        (Things::Rows, 1) => "1 row".to_owned(),
        (Things::Rows, _) => format!("{count} rows"),
        (Things::Sequences, 1) => "1 sequence".to_owned(),
        (Things::Sequences, _) => format!("{count} sequences"),
        (Things::Tokens, 1) => "1 token".to_owned(),
        (Things::Tokens, _) => format!("{count} tokens"),
    }
}

/// So many seconds; beyond what a `Duration` holds, as many as it does, and nothing where it is no time at all.
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(if seconds > 0.0 { Duration::MAX } else { Duration::ZERO })
}

/// A time in its two largest units: `2 h 05 min`, `3 min 20 s`, `12.4 s`, `171 ms`.
pub fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    let whole = seconds.round() as u64;
    match whole {
        3600.. => format!("{} h {:02} min", whole / 3600, whole % 3600 / 60),
        60.. => format!("{} min {:02} s", whole / 60, whole % 60),
        _ if seconds >= 1.0 => format!("{seconds:.1} s"),
        _ => format!("{:.0} ms", seconds * 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let check = |size: u64, expected: &str| assert_eq!(bytes(size), expected);
        check(0, "0 B");
        check(512, "512 B");
        check(3 * KIB, "3.0 KiB");
        check(512 * MIB, "512.0 MiB");
        check(12 * GIB, "12.00 GiB");
        check(16_000_000_000, "14.90 GiB");
    }

    #[test]
    fn times() {
        let check = |seconds: f64, expected: &str| {
            assert_eq!(duration(Duration::from_secs_f64(seconds)), expected);
        };
        check(0.1713, "171 ms");
        check(12.44, "12.4 s");
        check(59.7, "1 min 00 s");
        check(200.0, "3 min 20 s");
        check(7500.0, "2 h 05 min");
        let told = |time: f64| duration(seconds(time));
        assert_eq!([told(-1.0), told(f64::NAN)], ["0 ms", "0 ms"]);
        assert_eq!([told(1e300), told(f64::INFINITY)], [duration(Duration::MAX), duration(Duration::MAX)]);
    }
}
