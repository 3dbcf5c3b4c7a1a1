//! `strftime` of the current time, for templates that print the date. Times are UTC: the local time
//! zone is not looked up.

const DAYS: [&str; 7] = ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Date of the proleptic Gregorian calendar.
struct Date {
    year: u64,
    /// 1 to 12.
    month: usize,
    /// 1 to 31.
    day: u64,
    /// 1 to 366.
    day_of_year: u64,
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn month_lengths(year: u64) -> [u64; 12] {
    let february = if is_leap(year) { 29 } else { 28 };
    [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
}

/// Date of a day, counted from 1970-01-01.
fn date(days: u64) -> Date {
    // Skips whole cycles of 400 years, so that the loop is short for every input.
    let (mut year, mut rest) = (1970 + days / 146_097 * 400, days % 146_097);
    loop {
        let length = if is_leap(year) { 366 } else { 365 };
        if rest < length {
            break;
        }
        rest -= length;
        year += 1;
    }
    let day_of_year = rest + 1;
    let mut month = 1;
    for length in month_lengths(year) {
        if rest < length {
            break;
        }
        rest -= length;
        month += 1;
    }
    Date { year, month, day: rest + 1, day_of_year }
}

/// Formats a time in seconds since 1970-01-01 00:00 UTC. Unknown directives are copied.
pub(super) fn strftime(format: &str, seconds: u64) -> String {
    let date = date(seconds / 86_400);
    let weekday = DAYS[(seconds / 86_400 % 7) as usize];
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    let hour12 = if hour.is_multiple_of(12) { 12 } else { hour % 12 };
    let month = MONTHS[date.month - 1];
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.as_str();
        // `%-d` and similar directives print without padding.
        let (plain, directive) = match chars.next() {
            Some('-') => (true, chars.next()),
            other => (false, other),
        };
        let number = |value: u64, width: usize| {
            if plain { value.to_string() } else { format!("{value:0width$}") }
        };
        let formatted = match directive {
            Some('Y') => date.year.to_string(),
            Some('y') => number(date.year % 100, 2),
            Some('m') => number(date.month as u64, 2),
            Some('d') => number(date.day, 2),
            Some('e') if plain => date.day.to_string(),
            Some('e') => format!("{:2}", date.day),
            Some('j') => number(date.day_of_year, 3),
            Some('H') => number(hour, 2),
            Some('I') => number(hour12, 2),
            Some('M') => number(minute, 2),
            Some('S') => number(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => month.to_owned(),
            Some('b' | 'h') => month[..3].to_owned(),
            Some('A') => weekday.to_owned(),
            Some('a') => weekday[..3].to_owned(),
            Some('F') => strftime("%Y-%m-%d", seconds),
            Some('T') => strftime("%H:%M:%S", seconds),
            Some('D') => strftime("%m/%d/%y", seconds),
            Some('R') => strftime("%H:%M", seconds),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('%') => "%".to_owned(),
            _ => {
                out.push('%');
                chars = rest.chars();
                continue;
            }
        };
        out.push_str(&formatted);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn formats_as_the_c_library_does() {
        let at = 1_709_210_096; // 2024-02-29 12:34:56 UTC, a Thursday
        assert_eq!(strftime("%d %b %Y", at), "29 Feb 2024");
        assert_eq!(strftime("%A, %B %-d, %y %I:%M %p", at), "Thursday, February 29, 24 12:34 PM");
        assert_eq!(strftime("%F %T %j %a %e %%", at), "2024-02-29 12:34:56 060 Thu 29 %");
        assert_eq!(strftime("%Q %-Q %", at), "%Q %-Q %");
        assert_eq!(strftime("%e|%-m|%H", 0), " 1|1|00");
    }

    #[test]
    fn calendar_borders() {
        assert_eq!(strftime("%F", 951_782_399), "2000-02-28");
        assert_eq!(strftime("%F", 951_782_400), "2000-02-29");
        assert_eq!(strftime("%F", 4_107_542_399), "2100-02-28");
        assert_eq!(strftime("%F %a", 4_107_542_400), "2100-03-01 Mon");
        assert_eq!(strftime("%F", 12_622_780_800), "2370-01-01");
        assert!(strftime("%F", u64::MAX).ends_with(|c: char| c.is_ascii_digit()));
    }
}
