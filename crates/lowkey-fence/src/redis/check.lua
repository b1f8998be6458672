-- KEYS[1] the marks; ARGV[1] the token; ARGV[2] its mode. The others belong to the write.
local token, shared = ARGV[1], ARGV[2] == 'shared'

-- Decimal text without leading zeros: numbers in Lua are exact only up to 2^53.
local function below(one, other)
    if #one ~= #other then return #one < #other end
    return one < other
end

local kept = redis.call('HMGET', KEYS[1], 'exclusive', 'shared')
local exclusive_mark, shared_mark = kept[1] or '0', kept[2] or '0'
if below(token, exclusive_mark) or (not shared and below(token, shared_mark)) then
    return {0, exclusive_mark, shared_mark}
end
if not shared then
    redis.call('HSET', KEYS[1], 'exclusive', token)
elseif below(shared_mark, token) then
    redis.call('HSET', KEYS[1], 'shared', token)
end

local function write(KEYS, ARGV)
    --[[ the write ]]
end

local keys, arguments = {}, {}
for number = 2, #KEYS do keys[number - 1] = KEYS[number] end
for number = 3, #ARGV do arguments[number - 2] = ARGV[number] end
return {1, (write(keys, arguments))}
