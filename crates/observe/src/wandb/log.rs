//! The framing of a `.wandb` file: a header, then records in blocks as LevelDB's log has them, with other checksums.

use flate2::Crc;

const BLOCK_BYTES: usize = 32 * 1024;
/// Checksum, length and kind of a piece.
const HEAD_BYTES: usize = 7;

/// What every file begins with: a name, a magic number and the version of the format.
pub const FILE_HEAD: [u8; HEAD_BYTES] = [b':', b'W', b'&', b'B', 0xe1, 0xbe, 0];

/// How a piece belongs to its record.
#[derive(Clone, Copy)]
enum Kind {
    Full = 1,
    First = 2,
    Middle = 3,
    Last = 4,
}

/// A record in as many pieces as the blocks behind `offset` require.
pub fn framed(content: &[u8], offset: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(content.len() + 2 * HEAD_BYTES);
    let mut left = BLOCK_BYTES - (offset % BLOCK_BYTES as u64) as usize;
    if left < HEAD_BYTES {
        out.resize(left, 0);
        left = BLOCK_BYTES;
    }
    let mut rest = content;
    let mut is_first = true;
    loop {
        let (piece, behind) = rest.split_at(rest.len().min(left - HEAD_BYTES));
        let kind = match (is_first, behind.is_empty()) {
            (true, true) => Kind::Full,
            (true, false) => Kind::First,
            (false, true) => Kind::Last,
            (false, false) => Kind::Middle,
        };
        push(&mut out, kind, piece);
        if behind.is_empty() {
            return out;
        }
        (rest, is_first, left) = (behind, false, BLOCK_BYTES);
    }
}

fn push(out: &mut Vec<u8>, kind: Kind, piece: &[u8]) {
    let mut checksum = Crc::new();
    checksum.update(&[kind as u8]);
    checksum.update(piece);
    out.extend(checksum.sum().to_le_bytes());
    // A piece lies in one block, so its length takes two bytes.
    out.extend((piece.len() as u16).to_le_bytes());
    out.push(kind as u8);
    out.extend(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The records of a file, read back piece by piece.
    fn read(mut file: &[u8]) -> Vec<Vec<u8>> {
        let mut offset = HEAD_BYTES;
        file = file.strip_prefix(&FILE_HEAD).unwrap();
        let mut records: Vec<Vec<u8>> = Vec::new();
        while !file.is_empty() {
            let left = BLOCK_BYTES - offset % BLOCK_BYTES;
            if left < HEAD_BYTES {
                let (padding, behind) = file.split_at(left);
                assert!(padding.iter().all(|&byte| byte == 0));
                (file, offset) = (behind, offset + left);
                continue;
            }
            let length = usize::from(u16::from_le_bytes([file[4], file[5]]));
            assert!(length + HEAD_BYTES <= left, "a piece lies in one block");
            let (kind, piece) = (file[6], &file[HEAD_BYTES..HEAD_BYTES + length]);
            let mut checksum = Crc::new();
            checksum.update(&file[6..HEAD_BYTES + length]);
            assert_eq!(file[..4], checksum.sum().to_le_bytes());
            match kind {
                1 | 2 => records.push(piece.to_vec()),
                _ => records.last_mut().unwrap().extend(piece),
            }
            (file, offset) = (&file[HEAD_BYTES + length..], offset + HEAD_BYTES + length);
        }
        records
    }

    #[test]
    fn records_of_any_length_come_back() {
        let lengths = [0, 1, 100, 32_000, 646, 1, 0, 70_000, 32_761, 32_760, 32_754, 5, 100_000, 3];
        let records: Vec<Vec<u8>> = lengths.iter().map(|&n| (0..n).map(|i| (i * 7 + n) as u8).collect()).collect();
        let mut file = FILE_HEAD.to_vec();
        for record in &records {
            let framed = framed(record, file.len() as u64);
            file.extend(framed);
        }
        assert_eq!(read(&file), records);
    }
}
