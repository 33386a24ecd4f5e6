//! The framing of TFRecord: length, its checksum, content, its checksum.

/// A record around some content.
pub fn framed(content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u64).to_le_bytes();
    let mut record = Vec::with_capacity(content.len() + 16);
    record.extend(length);
    record.extend(masked(crc32c(&length)).to_le_bytes());
    record.extend(content);
    record.extend(masked(crc32c(content)).to_le_bytes());
    record
}

/// Checksums of data that holds checksums itself would be weak, so the format turns and shifts them.
fn masked(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

/// Castagnoli's polynomial, bits reversed.
const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ POLYNOMIAL } else { rest >> 1 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
};

fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| TABLE[usize::from(sum as u8 ^ byte)] ^ sum >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of RFC 3720, B.4.
    #[test]
    fn checksums_are_the_published_ones() {
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
        assert_eq!(crc32c(&(0..32).rev().collect::<Vec<u8>>()), 0x113f_db5c);
    }
}
