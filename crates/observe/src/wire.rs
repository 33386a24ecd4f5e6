//! The wire format of protocol buffers, as far as it is written here.

const VARINT: u64 = 0;
pub const FIXED_64: u64 = 1;
const BYTES: u64 = 2;
pub const FIXED_32: u64 = 5;

pub fn key(out: &mut Vec<u8>, field: u64, kind: u64) {
    varint(out, field << 3 | kind);
}

pub fn varint_field(out: &mut Vec<u8>, field: u64, number: u64) {
    key(out, field, VARINT);
    varint(out, number);
}

pub fn bytes(out: &mut Vec<u8>, field: u64, content: &[u8]) {
    key(out, field, BYTES);
    varint(out, content.len() as u64);
    out.extend(content);
}

fn varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}
