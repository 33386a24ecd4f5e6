//! All cards of the machine as NVML sees them, for whoever looks on: nothing here makes a context or takes memory.

use std::ffi::{CStr, c_char, c_int, c_uint};

use crate::error::Missing;
use crate::library::{self, Library, Opened};
use crate::nvml::{Handle, Holder, NAMES, Nvml, SUCCESS, text};

/// What a card is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CardInventory {
    pub name: String,
    pub total_bytes: u64,
    pub used_bytes: u64,
    pub power_limit_w: Option<f64>,
    pub power_default_w: Option<f64>,
    pub temperature_slowdown_c: Option<f64>,
    pub pcie_width: Option<u32>,
    pub pcie_width_max: Option<u32>,
    /// Processes that compute or draw on it.
    pub holders: Vec<Holder>,
}

/// What a card does at this moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CardReading {
    pub busy_percent: f64,
    pub used_bytes: u64,
    pub power_w: Option<f64>,
    pub temperature_c: Option<f64>,
    pub clock_mhz: Option<f64>,
    pub clock_max_mhz: Option<f64>,
    /// Both ways.
    pub pcie_bytes_per_s: Option<f64>,
    pub slowed: Slowed,
}

/// Why it runs slower than it could.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Slowed {
    pub by_power: bool,
    pub by_heat: bool,
    pub by_brake: bool,
}

impl Slowed {
    /// Of `nvmlClocksThrottleReasons`; what is idle or set by an application is not slowed.
    fn of(reasons: u64) -> Self {
        const POWER_CAP: u64 = 0x4;
        const THERMAL: u64 = 0x20 | 0x40;
        const POWER_BRAKE: u64 = 0x80;
        let any = |bits: u64| reasons & bits != 0;
        Self { by_power: any(POWER_CAP), by_heat: any(THERMAL), by_brake: any(POWER_BRAKE) }
    }
}

const TEMPERATURE_OF_GPU: c_uint = 0;
const THRESHOLD_SLOWDOWN: c_uint = 1;
const CLOCK_OF_SM: c_uint = 1;
const PCIE_DIRECTIONS: [c_uint; 2] = [0, 1];

#[repr(C)]
#[derive(Default)]
struct RawUtilization {
    gpu: c_uint,
    memory: c_uint,
}

/// NVML, opened for looking on.
pub struct Monitor {
    library: Opened,
    cards: Vec<Nvml>,
}

impl Monitor {
    /// `None` where there is no driver.
    pub fn open() -> Option<Self> {
        let library = library::open_optional(&NAMES)?;
        // SAFETY: the signatures are those of nvml.h; the library stays open.
        let handles = unsafe {
            let init: unsafe extern "C" fn() -> c_int = library.function(c"nvmlInit_v2")?;
            let count: unsafe extern "C" fn(*mut c_uint) -> c_int = library.function(c"nvmlDeviceGetCount_v2")?;
            let find: unsafe extern "C" fn(c_uint, *mut Handle) -> c_int =
                library.function(c"nvmlDeviceGetHandleByIndex_v2")?;
            let mut cards = 0;
            if init() != SUCCESS || count(&raw mut cards) != SUCCESS {
                return None;
            }
            let handle = |index| {
                let mut handle = std::ptr::null_mut();
                (find(index, &raw mut handle) == SUCCESS).then_some(handle)
            };
            (0..cards).filter_map(handle).collect::<Vec<Handle>>()
        };
        let cards = handles.into_iter().filter_map(|handle| Nvml::of(&library, handle)).collect();
        Some(Self { library, cards })
    }

    /// Such as `580.65.06`.
    pub fn driver_version(&self) -> Option<String> {
        // SAFETY: the signature is that of nvml.h; writes at most as many bytes as it is told.
        unsafe {
            let version: unsafe extern "C" fn(*mut c_char, c_uint) -> c_int =
                self.library.function(c"nvmlSystemGetDriverVersion")?;
            text(|place, len| version(place, len))
        }
    }

    pub fn inventory(&self) -> Vec<CardInventory> {
        self.cards.iter().map(|card| self.inventory_of(card)).collect()
    }

    pub fn readings(&self) -> Vec<CardReading> {
        self.cards.iter().map(|card| self.reading_of(card)).collect()
    }

    fn inventory_of(&self, card: &Nvml) -> CardInventory {
        let memory = card.memory();
        let mut holders = card.holders().unwrap_or_default();
        let known: Vec<u32> = holders.iter().map(|holder| holder.pid).collect();
        holders.extend(self.graphics_holders(card).into_iter().filter(|holder| !known.contains(&holder.pid)));
        CardInventory {
            name: self.name(card).unwrap_or_else(|| "NVIDIA GPU".to_owned()),
            total_bytes: memory.map_or(0, |memory| memory.total),
            used_bytes: memory.map_or(0, |memory| memory.used),
            power_limit_w: self.watts(card, c"nvmlDeviceGetEnforcedPowerLimit"),
            power_default_w: self.watts(card, c"nvmlDeviceGetPowerManagementDefaultLimit"),
            temperature_slowdown_c: self
                .number_of(card, c"nvmlDeviceGetTemperatureThreshold", THRESHOLD_SLOWDOWN)
                .map(f64::from),
            pcie_width: self.number(card, c"nvmlDeviceGetCurrPcieLinkWidth"),
            pcie_width_max: self.number(card, c"nvmlDeviceGetMaxPcieLinkWidth"),
            holders,
        }
    }

    fn reading_of(&self, card: &Nvml) -> CardReading {
        let pcie = PCIE_DIRECTIONS.map(|way| self.number_of(card, c"nvmlDeviceGetPcieThroughput", way));
        let pcie: Option<Vec<u32>> = pcie.into_iter().collect();
        CardReading {
            busy_percent: self.busy_percent(card).unwrap_or(0.0),
            used_bytes: card.used_bytes().unwrap_or(0),
            power_w: self.watts(card, c"nvmlDeviceGetPowerUsage"),
            temperature_c: self.number_of(card, c"nvmlDeviceGetTemperature", TEMPERATURE_OF_GPU).map(f64::from),
            clock_mhz: self.number_of(card, c"nvmlDeviceGetClockInfo", CLOCK_OF_SM).map(f64::from),
            clock_max_mhz: self.number_of(card, c"nvmlDeviceGetMaxClockInfo", CLOCK_OF_SM).map(f64::from),
            pcie_bytes_per_s: pcie.map(|ways| ways.iter().map(|&kib| f64::from(kib) * 1024.0).sum()),
            slowed: Slowed::of(self.throttle_reasons(card).unwrap_or(0)),
        }
    }

    fn graphics_holders(&self, card: &Nvml) -> Vec<Holder> {
        // SAFETY: the signature is that of the call for computing processes, as nvml.h has it.
        let call = unsafe { self.library.function(c"nvmlDeviceGetGraphicsRunningProcesses_v3") };
        call.and_then(|call| card.holders_by(call)).unwrap_or_default()
    }

    fn name(&self, card: &Nvml) -> Option<String> {
        // SAFETY: the signature is that of nvml.h; writes at most as many bytes as it is told.
        unsafe {
            let name: unsafe extern "C" fn(Handle, *mut c_char, c_uint) -> c_int =
                self.library.function(c"nvmlDeviceGetName")?;
            text(|place, len| name(card.device, place, len))
        }
    }

    fn busy_percent(&self, card: &Nvml) -> Option<f64> {
        let mut raw = RawUtilization::default();
        // SAFETY: the signature is that of nvml.h; the structure has two numbers of 32 bits.
        let status = unsafe {
            let rates: unsafe extern "C" fn(Handle, *mut RawUtilization) -> c_int =
                self.library.function(c"nvmlDeviceGetUtilizationRates")?;
            rates(card.device, &raw mut raw)
        };
        (status == SUCCESS).then_some(f64::from(raw.gpu))
    }

    fn throttle_reasons(&self, card: &Nvml) -> Option<u64> {
        let mut reasons = 0u64;
        // SAFETY: the signature is that of nvml.h.
        let status = unsafe {
            let ask: unsafe extern "C" fn(Handle, *mut u64) -> c_int =
                self.library.function(c"nvmlDeviceGetCurrentClocksThrottleReasons")?;
            ask(card.device, &raw mut reasons)
        };
        (status == SUCCESS).then_some(reasons)
    }

    fn watts(&self, card: &Nvml, symbol: &CStr) -> Option<f64> {
        self.number(card, symbol).map(|milliwatts| f64::from(milliwatts) / 1000.0)
    }

    /// A figure that a call writes for a card. Only for calls of this signature.
    fn number(&self, card: &Nvml, symbol: &CStr) -> Option<u32> {
        let mut number = 0;
        // SAFETY: every symbol that is asked for here has this signature in nvml.h.
        let status = unsafe {
            let ask: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int = self.library.function(symbol)?;
            ask(card.device, &raw mut number)
        };
        (status == SUCCESS).then_some(number)
    }

    /// A figure of a given kind. Only for calls of this signature.
    fn number_of(&self, card: &Nvml, symbol: &CStr, kind: c_uint) -> Option<u32> {
        let mut number = 0;
        // SAFETY: every symbol that is asked for here has this signature in nvml.h; enumerations are 32 bits wide.
        let status = unsafe {
            let ask: unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int = self.library.function(symbol)?;
            ask(card.device, kind, &raw mut number)
        };
        (status == SUCCESS).then_some(number)
    }
}

/// Libraries that training needs besides the driver and that cannot be found.
pub fn missing_libraries() -> Vec<Missing> {
    match library::require(&[Library::Nvrtc, Library::BlasLt]) {
        Err(crate::CudaError::Missing { missing, .. }) => missing,
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_told_apart() {
        let slowed = |by_power, by_heat, by_brake| Slowed { by_power, by_heat, by_brake };
        // Idle, and clocks that an application has set.
        assert_eq!(Slowed::of(0x1 | 0x2), slowed(false, false, false));
        assert_eq!(Slowed::of(0x4), slowed(true, false, false));
        assert_eq!(Slowed::of(0x20), slowed(false, true, false));
        assert_eq!(Slowed::of(0x40 | 0x8), slowed(false, true, false));
        assert_eq!(Slowed::of(0x80 | 0x4), slowed(true, false, true));
    }
}
