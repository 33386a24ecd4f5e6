//! Numbers as a file stores them.

use half::{bf16, f16};

use super::format::{BLOCK, GgufType};

/// Appends numbers in the given type. `false` if one of them is beyond its range.
pub(super) fn encode(numbers: &[f32], stored: GgufType, out: &mut Vec<u8>) -> bool {
    match stored {
        GgufType::F32 => out.extend(numbers.iter().flat_map(|x| x.to_le_bytes())),
        GgufType::BF16 => out.extend(numbers.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes())),
        GgufType::F16 => {
            out.extend(numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()));
            return numbers.iter().all(|&x| f16::from_f32(x).is_finite());
        }
        GgufType::Q8_0 => {
            let (blocks, _) = numbers.as_chunks::<BLOCK>();
            return blocks.iter().fold(true, |within, block| encode_block(block, out) & within);
        }
    }
    true
}

/// The largest number of a block becomes 127, the others what is nearest in its steps.
fn encode_block(block: &[f32; BLOCK], out: &mut Vec<u8>) -> bool {
    let largest = block.iter().fold(0f32, |largest, x| largest.max(x.abs()));
    let step = largest / 127.0;
    let inverse = if step == 0.0 { 0.0 } else { 1.0 / step };
    let scale = f16::from_f32(step);
    out.extend(scale.to_le_bytes());
    out.extend(block.iter().map(|x| (x * inverse).round() as i8 as u8));
    scale.is_finite()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_hold_steps_of_their_largest_number() {
        let mut block = [0.0; BLOCK];
        block[3] = -12.7;
        block[4] = 0.06;
        block[5] = 0.04;
        let mut out = Vec::new();
        assert!(encode(&block, GgufType::Q8_0, &mut out));
        assert_eq!(out.len(), GgufType::Q8_0.bytes(BLOCK));
        assert_eq!(out[..2], f16::from_f32(0.1).to_le_bytes());
        assert_eq!(out[2 + 3..2 + 6], [-127i8 as u8, 1, 0]);
        out.clear();
        assert!(encode(&[0.0; BLOCK], GgufType::Q8_0, &mut out));
        assert!(out.iter().all(|byte| *byte == 0));
    }

    #[test]
    fn what_a_type_cannot_hold_is_said() {
        let mut out = Vec::new();
        assert!(encode(&[65_504.0], GgufType::F16, &mut out));
        assert!(!encode(&[65_520.0], GgufType::F16, &mut out));
        assert!(encode(&[1e30], GgufType::BF16, &mut out));
        assert!(!encode(&[1e30; BLOCK], GgufType::Q8_0, &mut out));
    }
}
