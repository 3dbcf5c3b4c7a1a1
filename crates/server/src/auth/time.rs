//! Points in time of a keys file: TOML date-times in UTC.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::value::{Date, Datetime, Offset, Time};

/// A second of UTC from 1970 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// The second that contains `time`; times before 1970 count as its start.
    pub fn new(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
    }

    /// Seconds since 1970.
    pub fn unix(self) -> u64 {
        self.0
    }

    /// The moment this much later.
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(duration.as_secs()).min(Self::MOST))
    }

    /// End of the year 9999.
    const MOST: u64 = 253_402_300_799;

    fn datetime(self) -> Datetime {
        let (days, second) = (self.0 / 86_400, self.0 % 86_400);
        let (year, month, day) = civil(days);
        Datetime {
            date: Some(Date { year, month, day }),
            time: Some(Time {
                hour: (second / 3600) as u8,
                minute: (second / 60 % 60) as u8,
                second: Some((second % 60) as u8),
                nanosecond: None,
            }),
            offset: Some(Offset::Z),
        }
    }

    fn of(datetime: &Datetime) -> Option<Self> {
        let date = datetime.date.as_ref()?;
        // A date alone is its start.
        let (hour, minute, second) = match &datetime.time {
            Some(time) => (time.hour, time.minute, time.second.unwrap_or(0)),
            None => (0, 0, 0),
        };
        let offset = match datetime.offset {
            Some(Offset::Custom { minutes }) => i64::from(minutes) * 60,
            Some(Offset::Z) | None => 0,
        };
        let second = i64::from(hour) * 3600 + i64::from(minute) * 60 + i64::from(second.min(59));
        let total = days(date.year, date.month, date.day) * 86_400 + second - offset;
        u64::try_from(total).ok().map(Self)
    }
}

impl std::fmt::Display for Moment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.datetime().fmt(f)
    }
}

impl Serialize for Moment {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.datetime().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Moment {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let datetime = Datetime::deserialize(deserializer)?;
        Self::of(&datetime).ok_or_else(|| {
            D::Error::custom(format!("{datetime} is no point in time such as 2027-01-31T00:00:00Z"))
        })
    }
}

/// Days from 1970-01-01 to a date of the Gregorian calendar (Hinnant, `days_from_civil`).
fn days(year: u16, month: u8, day: u8) -> i64 {
    let year = i64::from(year) - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((i64::from(month) + 9) % 12) + 2) / 5 + i64::from(day) - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Date of a day after 1970-01-01 (Hinnant, `civil_from_days`).
fn civil(days: u64) -> (u16, u8, u8) {
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = (of_year - (153 * shifted + 2) / 5 + 1) as u8;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 } as u8;
    ((year + era * 400 + u64::from(month <= 2)) as u16, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct At {
        at: Moment,
    }

    fn read(text: &str) -> Option<Moment> {
        toml::from_str::<At>(&format!("at = {text}")).ok().map(|at| at.at)
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (text, second) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-03-01T00:00:00Z", 1_709_251_200),
            ("2038-01-19T03:14:08Z", 2_147_483_648),
            ("9999-12-31T23:59:59Z", Moment::MOST),
        ] {
            assert_eq!(read(text), Some(Moment(second)), "{text}");
            assert_eq!(Moment(second).to_string(), text);
        }
        assert_eq!(read("2024-03-01T02:00:00+02:00"), Some(Moment(1_709_251_200)));
        assert_eq!(read("2024-03-01"), Some(Moment(1_709_251_200)));
        assert_eq!((read("12:00:00"), read("1969-12-31"), read("\"x\"")), (None, None, None));
    }

    #[test]
    fn every_day_comes_back() {
        for day in (0..2_932_896).step_by(13) {
            let (year, month, date) = civil(day);
            assert_eq!(days(year, month, date), day as i64);
        }
    }
}
