# cmake -D SOURCE=... -D HEADER=... -P commit.cmake: writes HEADER, if what it says has changed.
execute_process(COMMAND git -C ${SOURCE} describe --always --dirty --abbrev=40 --exclude=*
                OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
file(CONFIGURE OUTPUT ${HEADER} @ONLY CONTENT [[
// The commit that is checked out, "-dirty" behind it if files differ; empty outside of git.
inline constexpr char commit[] = "@commit@";
]])
