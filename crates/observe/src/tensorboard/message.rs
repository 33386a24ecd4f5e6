//! The three messages that are needed of TensorFlow's `event.proto`.

use crate::wire::{FIXED_32, FIXED_64, bytes, key, varint_field};

/// The first message of every file.
pub fn version(wall_time: f64) -> Vec<u8> {
    let mut event = event(wall_time, 0);
    bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// Says that what an earlier file has of this step or later ones does not count.
pub fn session_start(wall_time: f64, step: u64) -> Vec<u8> {
    const START: u64 = 1;
    let mut log = Vec::new();
    varint_field(&mut log, 1, START);
    let mut event = event(wall_time, step);
    bytes(&mut event, 7, &log);
    event
}

/// Points of several curves.
pub fn summary(wall_time: f64, step: u64, scalars: &[(String, f64)]) -> Vec<u8> {
    let mut all = Vec::new();
    for (tag, number) in scalars {
        let mut value = Vec::new();
        bytes(&mut value, 1, tag.as_bytes());
        key(&mut value, 2, FIXED_32);
        value.extend((*number as f32).to_le_bytes());
        bytes(&mut all, 1, &value);
    }
    let mut event = event(wall_time, step);
    bytes(&mut event, 5, &all);
    event
}

fn event(wall_time: f64, step: u64) -> Vec<u8> {
    let mut event = Vec::new();
    key(&mut event, 1, FIXED_64);
    event.extend(wall_time.to_le_bytes());
    // What is 0 is not written.
    if step > 0 {
        varint_field(&mut event, 2, step);
    }
    event
}

#[cfg(test)]
mod tests {
    use super::super::record::framed;
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The bytes that TensorBoard's own writer makes of the same events (`tests/check_tensorboard.py --golden`).
    #[test]
    fn bytes_are_those_of_tensorboards_writer() {
        let scalars = [("train/loss".to_owned(), 2.5), ("eval/loss".to_owned(), -0.125)];
        let mut file = framed(&version(1.5e9));
        file.extend(framed(&session_start(1.5e9, 7)));
        file.extend(framed(&summary(1_700_000_000.25, 300, &scalars)));
        assert_eq!(hex(&file), include_str!("golden.hex").trim());
    }
}
